"""`detscope prune` as a person types it: folders, table, JSON, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch_process import DETECTION, TorchServer

from detscope.cli.networks.prune import parse_levels
from detscope.errors import UsageError

IMPORTS = (*DETECTION, "effdet", "torch_pruning")


def plain(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detscope", "prune", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_networks_are_made_and_what_cannot_be_pruned_does_not_stop_the_rest(
    tmp_path: Path, torch_server: TorchServer
) -> None:
    asked = ("tiny_ssd", "shufflenet_v2_x0_5", "tiny_efficientdet", "--levels", "0,50", "--out", "nets")
    done = torch_server("prune", *asked, "--json", folder=tmp_path, imports=IMPORTS)
    assert done.returncode == 6, done.stderr
    assert "shufflenet_v2_x0_5 cannot be pruned" in done.stderr and "Traceback" not in done.stderr
    result = json.loads(done.stdout)
    names = [
        f"{model}-random-p{level}-s0" for model in ("tiny_ssd", "tiny_efficientdet") for level in (0, 50)
    ]
    assert [row["network"] for row in result["networks"]] == names
    assert [failure["model"] for failure in result["failed"]] == ["shufflenet_v2_x0_5"]
    assert sorted(path.name for path in (tmp_path / "nets").iterdir()) == sorted(names)
    for row in result["networks"]:
        assert abs(row["level_reached"] - row["level_asked"]) <= 1
        card = json.loads((tmp_path / row["folder"] / "network.json").read_text())
        assert card["parameters"] == row["parameters"] and card["flops"] > 0
        assert {path.name for path in (tmp_path / row["folder"]).iterdir()} == {
            "network.json",
            "weights.safetensors",
        }
    checksums = weights_of(tmp_path / "nets")
    again = torch_server("prune", *asked, folder=tmp_path, imports=IMPORTS)
    assert again.returncode == 2 and "is there already" in again.stderr and "--force" in again.stderr
    assert weights_of(tmp_path / "nets") == checksums
    forced = plain(
        "tiny_ssd", "tiny_efficientdet", "--levels", "0,50", "--out", "nets", "--force", folder=tmp_path
    )
    assert forced.returncode == 0, forced.stderr
    assert "reached" in forced.stdout and "tiny_ssd-random-p50-s0" in forced.stdout
    assert "pruning: 4/4 (100 %)" in forced.stderr
    assert weights_of(tmp_path / "nets") == checksums, "the same seed gave other networks in another process"


def weights_of(folder: Path) -> dict[str, str]:
    return {
        path.parent.name: json.loads(path.read_text())["weights"]["sha256"]
        for path in folder.glob("*/network.json")
    }


def test_a_folder_of_another_kind_is_never_replaced(tmp_path: Path, torch_server: TorchServer) -> None:
    mine = tmp_path / "networks" / "tiny_ssd-random-p0-s0"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("mine")
    done = torch_server("prune", "tiny_ssd", "--levels", "0", "--force", folder=tmp_path, imports=IMPORTS)
    assert done.returncode == 2 and "is no network folder and is not replaced" in done.stderr
    assert (mine / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("0,30,50", [0, 30, 50]),
        ("0,5,...,90", [float(level) for level in range(0, 91, 5)]),
        ("50, 10,10", [10, 50]),
        ("0,2.5,...,10", [0, 2.5, 5, 7.5, 10]),
    ],
)
def test_levels_are_a_list_or_a_progression(text: str, levels: list[float]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "100", "0,...,90", "0,5,...", "10,5,...,90", "nan", "0,1e-9,...,90"]
)
def test_levels_that_are_none_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="--levels"):
        parse_levels(text)
