"""`detscope infer` as it is typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from detscope.cli.main import app
from detscope.config.schema import Settings
from detscope.report.progress import Progress
from named_rows import by_name


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, args)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that measuring is asked for; nothing is measured."""
    import detscope.sessions.infer.inference

    settings: list[Settings] = []

    def stand_in(given: Settings, *, progress: Progress, notes: Sequence[str]) -> Path:
        settings.append(given)
        return Path("runs/a-run")

    monkeypatch.setattr(detscope.sessions.infer.inference, "run_inference", stand_in)
    monkeypatch.setattr("detscope.cli.measure.infer.read_finished", lambda run: None)
    return settings


def test_flags_become_settings(asked: list[Settings]) -> None:
    flags = "tiny_ssd a.jpg b/*.png --limit 7 --batch-size 2 --device cpu --precision bf16 --threads 1 "
    flags += "--score 0.5 --repeat 3 --modules none --level phases --stage x=head --stage y=backbone "
    flags += "--tensorboard --weights none --image-size 64 --out there -q"
    result = invoke("infer", *flags.split())
    assert (result.exit_code, result.stdout) == (0, "runs/a-run\n"), result.stderr
    (settings,) = asked
    inference = settings.inference
    assert inference.images == ["a.jpg", "b/*.png"]
    assert (inference.limit, inference.batch_size, inference.repeat, inference.threads) == (7, 2, 3, 1)
    assert (inference.device, inference.precision, inference.score) == ("cpu", "bf16", 0.5)
    assert inference.stages == ["x=head", "y=backbone"]
    assert inference.tensorboard
    assert (settings.model.name, settings.model.weights, settings.model.image_size) == (
        "tiny_ssd",
        "none",
        64,
    )
    assert (settings.record.level, settings.record.modules, settings.output.runs) == (
        "phases",
        "none",
        "there",
    )


@pytest.mark.parametrize(
    ("args", "model", "images"),
    [
        ([], "fasterrcnn_resnet50_fpn", []),
        (["tiny_ssd"], "tiny_ssd", []),
        (["tiny_ssd", "synthetic"], "tiny_ssd", ["synthetic"]),
        (["--model", "faster-rcnn", "photo.jpg", "x"], "faster-rcnn", ["photo.jpg", "x"]),
        (["--model", "mask-rcnn"], "mask-rcnn", []),
        (["photo.jpg"], "fasterrcnn_resnet50_fpn", ["photo.jpg"]),
        (["*.jpg", "synthetic"], "fasterrcnn_resnet50_fpn", ["*.jpg", "synthetic"]),
        (["synthetic"], "fasterrcnn_resnet50_fpn", ["synthetic"]),
        (["file.py:make", "photo.jpg"], "file.py:make", ["photo.jpg"]),
        (["tiny_typo", "photo.jpg"], "tiny_typo", ["photo.jpg"]),
    ],
)
def test_the_first_argument_is_the_model_unless_it_can_only_be_images(
    args: list[str], model: str, images: list[str], asked: list[Settings]
) -> None:
    Path("photo.jpg").touch()
    Path("tiny_ssd").mkdir()  # a folder does not hide a model
    result = invoke("infer", *args, "-q")
    assert result.exit_code == 0, result.stderr
    assert (asked[0].model.name, asked[0].inference.images) == (model, images)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--limit", "0"], "error: --limit: inference.limit: expected at least 1, got 0"),
        (["--score", "7"], "error: --score: inference.score: expected at most 1.0, got 7"),
        (["--modules", "leafs"], 'expected "all", "leaf", "none" or a depth'),
        (["--set", "inference.images=3"], "error: --set: inference.images: expected a list of texts, got 3"),
        (["-q", "-v"], "error: -q and -v exclude each other"),
    ],
)
def test_wrong_usage_is_explained_with_exit_2(args: list[str], message: str) -> None:
    result = invoke("infer", "tiny_ssd", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_bad_images_are_told_on_stderr_and_json_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["detscope"])
    Image.new("RGB", (80, 60)).save("good.jpg")
    Path("empty.jpg").touch()
    flags = ["--weights", "none", "--device", "cpu", "--set", "record.telemetry_hz=0"]
    result = invoke("infer", "tiny_ssd", "good.jpg", "empty.jpg", *flags, "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["images"] == 1
    assert summary["skipped"] == [{"file": "empty.jpg", "reason": "is empty (0 bytes)"}]
    assert result.stderr.count("skipped empty.jpg: is empty (0 bytes)") == 1
    assert "random weights" in result.stderr
    again = json.loads(invoke("show", "--json").stdout)
    assert by_name(again["stages"], "total_ms", 0) == by_name(summary["stages"], "total_ms", 0)


def test_without_a_readable_image_every_line_names_one_and_the_exit_code_is_3() -> None:
    Path("empty.jpg").touch()
    result = invoke("infer", "tiny_ssd", "empty.jpg", "nowhere.png")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[-4:-1] == [
        "error: empty.jpg: is empty (0 bytes)",
        "error: nowhere.png: no such file",
        "error: none of the images can be measured",
    ]
    assert not Path("runs").exists()
