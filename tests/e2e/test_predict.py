"""`detscope predict` as a person types it: a network traced, a table or JSON, one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch_process import DETECTION, Ended, TorchServer
from typer.testing import CliRunner

from detscope.cli.main import app
from detscope.runs.writer import RunWriter

pytest.importorskip("torch")


@pytest.fixture
def run(tmp_path: Path, torch_server: TorchServer) -> Callable[..., Ended]:
    return partial(torch_server, folder=tmp_path, imports=DETECTION)


def typed(*arguments: str) -> Any:
    """The same in this process: a mistake is found before torch is needed."""
    return CliRunner().invoke(app, ("predict", *arguments))


def test_memory_is_simulated_without_a_device_model_and_latency_is_not_guessed(
    run: Callable[..., Ended],
) -> None:
    asked = ("resnet18", "--batch-sizes", "1,4,64", "--image-size", "64", "--memory-limit", "250MiB")
    done = run("predict", *asked, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cannot_tell"] == ["latency: no device model"]
    assert [row["batch"] for row in found["rows"]] == [1, 4, 64]
    for row in found["rows"]:
        assert row["latency_ms"] is None and row["process_bytes"] is None
        assert sum(part["bytes"] for part in row["cpu_categories"]) == row["cpu_allocated_bytes"]
        assert row["reserved_bytes"] >= row["allocated_bytes"]
    assert found["rows"][-1]["fits"] == "does not fit"
    assert found["rows"][0]["assumed"] and found["measured"]
    assert {"layer1", "layer4"} <= {part["name"] for part in found["memory_by_stage"]}
    # between 4 and 64: the first batch for which the allocator alone needs more than the limit
    assert found["largest_batch_that_fits"] is None
    assert 4 < found["smallest_batch_that_does_not_fit"] <= 64


def test_the_table_says_what_cannot_be_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "detscope", "predict", "tiny_ssd"]  # once as it truly starts
    command += ["--batch-sizes", "2", "--stage", "inference"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "tiny_ssd: inference step" in done.stdout and "latency: no device model" in done.stdout
    assert "assumed" in done.stdout and "scratch memory" in done.stdout


def test_another_optimizer_than_that_of_the_device_model_is_said(tmp_path: Path) -> None:
    recorded = Path(__file__).parents[1] / "recorded_cpu" / "microbench.csv"
    model = tmp_path / "layers.model"
    done = CliRunner().invoke(app, ["fit", "--layer-times", str(recorded), "--out", str(model)])
    assert done.exit_code == 0, done.output
    asked = ("resnet18", "--batch-sizes", "2", "--image-size", "64", "--device-model", str(model), "--json")
    asked += ("--memory-limit", "100GiB")
    for optimizer, said in (("sgd", False), ("adam", True)):
        found = json.loads(typed(*asked, "--optimizer", optimizer).stdout)
        assert found["rows"][0]["latency_ms"] > 0
        assert not found["rows"][0]["extrapolated"], "no whole network was measured to be far from"
        assert found["rows"][0]["fits"] == "cannot tell"
        assert found["rows"][0]["fits_why"] == "the device model has no measured memory"
        assert found["places_at_batch"] == found["best_batch_for_throughput"] == 2
        assert any("not Adam's update" in note for note in found["notes"]) is said
        assert not any("memory traffic" in note for note in found["notes"])


def test_a_run_is_predicted_beside_what_it_measured_and_keeps_it(
    tmp_path: Path, run: Callable[..., Ended]
) -> None:
    done = run("train", "tiny_ssd", "--steps", "4", "--memory", "--quiet")
    assert done.returncode == 0, done.stderr
    done = run("predict", "latest", "--json", "--picture", "run.svg")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    step, peak = found["compared"]
    assert step["measured"] > 0 and step["predicted"] is None and "--device-model" in step["why"]
    assert abs(peak["error"]) < 0.05
    assert sum(row["measured"] for row in found["categories"]) == peak["measured"]
    assert (tmp_path / "run.svg").is_file()
    kept = json.loads((tmp_path / "runs" / "latest" / "predicted.json").read_text())
    assert kept["compared"] == found["compared"]
    refused = typed(str(tmp_path / "runs" / "latest"), "--batch-sizes", "1,2")
    assert refused.exit_code == 2 and "a run is predicted as it was" in refused.stderr


def test_a_run_whose_network_cannot_be_built_again_is_one_line(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "run", "script", {"device": "cpu", "batch_size": 2})
    writer.close_run("ok")
    done = typed(str(writer.folder))
    assert done.exit_code == 3
    assert "cannot be predicted" in done.stderr.splitlines()[0] and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "is not a device model"),
        (b'{"format": "detscope device model", "version": 99}', "of version 99"),
        (b'{"format": "detscope device model", "version": 1, "targets"', "is damaged"),
        (b"\x80\x04K\x01.", "is a pickle, and pickles are never opened"),
    ],
)
def test_a_file_that_is_no_device_model_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "device.model").write_bytes(content)
    done = typed("resnet18", "--device-model", str(tmp_path / "device.model"))
    assert done.exit_code == 3
    first, hint = done.stderr.strip().splitlines()
    assert message in first and hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet18", "--batch-sizes", "4,0"), "a batch of 0 images"),
        (("resnet18", "--batch-sizes", "many"), "is no list of whole numbers"),
        (("resnet18", "--memory-limit", "much"), "is no size"),
        (("resnet18", "--stage", "dreaming"), "no such stage"),
        (("resnet18", "--picture", "it.pdf"), "neither .png nor .svg"),
    ],
)
def test_a_wrong_wish_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = typed(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[0] and "Traceback" not in done.stderr
