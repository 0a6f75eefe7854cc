"""`detscope why` on scripts that were really recorded: the planted lines, their ids, the mended script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from counted_runs import CHECK_RULE, rules
from detscope.analyze.findings.listing import MOST_BYTES
from detscope.analyze.schema import make_schema
from detscope.cli.main import app

SCRIPT = """
import torch
from torch import nn

from losses import count_losses


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)

    def forward(self, images):
        return self.body(images).sigmoid()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for images in torch.utils.data.DataLoader([torch.rand(8) for _ in range(96)], batch_size=4):
    losses = count_losses(model(images))
    optimizer.zero_grad()
    sum(losses.values()).backward()
    optimizer.step()
    logged = {name: value.item() for name, value in losses.items()}
"""
CHECKS = """
def check_boxes(boxes):
    assert (boxes >= 0).all()
    if (boxes > 1).any():
        raise ValueError("boxes")


def count_losses(boxes):
    check_boxes(boxes)
    return {f"loss_{index}": boxes[:, index].square().mean() for index in range(4)}
"""
MENDED = CHECKS.replace("    assert (boxes >= 0).all()\n", "").replace("(boxes > 1).any()", "boxes is None")
Runs = dict[str, Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, torch_server) -> Runs:
    """The same script three times, and mended; its functions lie in a folder of their own."""
    made = {}
    texts = {"first": CHECKS, "again": CHECKS, "moved": "\n\n# more\n" + CHECKS, "mended": MENDED}
    for name, text in texts.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "parts").mkdir()
        (folder / "parts" / "losses.py").write_text(text)
        (folder / "train.py").write_text(f'import sys\nsys.path.insert(0, "parts")\n{SCRIPT}')
        done = torch_server("run", "-q", "--census", "train.py", folder=folder, teardown=True)
        assert done.returncode == 0, done.stderr
        made[name] = folder / "runs" / "latest"
    return made


@pytest.fixture(autouse=True)
def check_rule() -> Iterator[None]:
    with rules(CHECK_RULE):
        yield


def why(*words: object):
    done = CliRunner().invoke(app, ["why", *map(str, words)], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert len(done.stdout.encode()) <= MOST_BYTES
    return done


def planted(run: Path) -> list[dict]:
    told = json.loads(why(run, "--json").stdout)
    Draft202012Validator(make_schema("findings")).validate(told)
    return [one for one in told["findings"] if one["rule"] == "planted_check"]


def test_the_lines_are_named_with_counts_and_the_ids_are_those_of_every_run(runs: Runs) -> None:
    (found,) = planted(runs["first"])
    assert [one["line"] for one in found["where"]] == [3, 4]
    assert {(one["file"], one["function"]) for one in found["where"]} == {("losses.py", "check_boxes")}
    assert found["code"] == "assert (boxes >= 0).all()"
    assert found["on_device"]["waits"] == 2
    assert found["cost_low_ms"] <= found["cost_ms"] <= found["cost_high_ms"]
    (again,), (moved,) = planted(runs["again"]), planted(runs["moved"])
    assert again["id"] == moved["id"] == found["id"]
    assert [one["line"] for one in moved["where"]] == [6, 7]
    assert planted(runs["mended"]) == []


def test_a_terminal_shows_place_code_costs_change_and_the_command_that_tries_it(runs: Runs) -> None:
    lines = why(runs["first"]).stdout.splitlines()
    text = " ".join(" ".join(lines).split())
    assert [line for line in lines if len(line) > 80 and "/" not in line] == []  # a path is not broken
    for part in (
        "a step waits for the device 6 times",  # two checks, four losses that are logged
        "losses.py:3 check_boxes, also line 4",
        "assert (boxes >= 0).all()",
        "the host's clock; certain",
        "about 0.060 ms: 2 waits",
        "check on the host, or once",
        "detscope try",
    ):
        assert part in text
    assert text.count("30 µs for a wait") == 1  # what all estimates rest on is said once


def test_a_mended_line_is_gone_in_a_comparison(runs: Runs) -> None:
    done = CliRunner().invoke(app, ["compare", str(runs["first"]), str(runs["mended"]), "--json"])
    (found,) = json.loads(done.stdout)["comparisons"]
    assert [one["id"].split("-")[0] for one in found["findings"]["gone"]] == ["planted_check"]
    rows = {row["name"]: row for row in found["census"]}
    assert (rows["waits"]["before"], rows["waits"]["after"]) == (6, 4)


def test_the_first_screen_and_the_verdict_begin_with_the_first_finding(runs: Runs) -> None:
    first = json.loads(why(runs["first"], "--json").stdout)["findings"][0]
    shown = CliRunner().invoke(app, ["show", str(runs["first"])], env={"COLUMNS": "100"}).stdout
    assert f"advice {first['claim'][:40]}" in " ".join(shown.split())  # a screen may cut its end
    verdict = CliRunner().invoke(app, ["show", str(runs["first"]), "--section", "verdict"]).stdout
    assert first["claim"] in " ".join(verdict.split())


def test_a_sarif_file_points_at_the_file_below_the_folder_of_the_run(runs: Runs, tmp_path: Path) -> None:
    why(runs["first"], "--sarif", tmp_path / "findings.sarif")
    (log,) = json.loads((tmp_path / "findings.sarif").read_text())["runs"]
    (result,) = [one for one in log["results"] if one["ruleId"] == "planted_check"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "parts/losses.py"
    assert location["physicalLocation"]["region"]["startLine"] == 3
    assert result["partialFingerprints"] == {"detscope/v1": planted(runs["first"])[0]["id"]}


def test_a_run_that_failed_before_its_first_step_says_so_and_asks_for_no_census(torch_server, tmp_path):
    (tmp_path / "train.py").write_text('import torch\nraise FileNotFoundError("no images here")\n')
    done = torch_server("run", "-q", "train.py", folder=tmp_path, teardown=True)
    assert done.returncode == 1
    told = " ".join(why(tmp_path / "runs" / "latest").stdout.split())
    assert "no finding: no step was recorded; failed: " in told and "no images here" in told
    assert "census" not in told
