"""The product on a real GPU: the self-test, detectors, a script of somebody else's, ranks, NVIDIA's tools."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detscope.machine.programs import find_nsight
from detscope.runs.reader import load_run
from gpu.conftest import check_device_clock, count_gpus, newest_run, read_json

pytestmark = pytest.mark.gpu
Command = Callable[..., Any]
YOLO_LIKE = Path(__file__).with_name("yolo_like.py")


def test_the_self_test_is_right_in_every_row(detscope: Command, gpu: str) -> None:
    found = read_json(detscope("doctor", "--selftest", "--device", gpu, "--json").stdout)
    assert [row for row in found["rows"] if row["verdict"] == "wrong"] == []


def test_the_doctor_computes_on_every_device(detscope: Command) -> None:
    found = read_json(detscope("doctor", "--json").stdout)
    devices = next(one for one in found["findings"] if one["topic"] == "devices")
    assert devices["status"] == "ok", devices


@pytest.mark.parametrize("model", ["tiny_fasterrcnn", "tiny_maskrcnn", "tiny_retinanet", "tiny_ssd"])
def test_a_torchvision_detector_is_told_on_the_devices_clock(
    model: str, detscope: Command, gpu: str, tmp_path: Path
) -> None:
    detscope("train", model, "--device", gpu, "--steps", "24", "--level", "ops", "--memory")
    summary = newest_run(tmp_path)
    check_device_clock(summary)
    stages = {stage.name for stage in summary.stages if stage.total_ms > 0}
    assert "backbone" in stages
    ratios = [one.ratio for one in summary.clocks.agreement if one.kind == "phase" and one.ratio is not None]
    assert ratios and all(0.9 < ratio < 1.1 for ratio in ratios)
    assert summary.accelerator is not None and summary.accelerator.name
    assert summary.memory is not None and summary.memory.levels.reserved_bytes
    assert summary.memory.levels.context_bytes


def test_an_inference_is_told_on_the_devices_clock(detscope: Command, gpu: str, tmp_path: Path) -> None:
    detscope("infer", "tiny_fasterrcnn", "synthetic", "--device", gpu)
    check_device_clock(newest_run(tmp_path))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_another_precision_has_its_own_roof(
    precision: str, detscope: Command, gpu: str, tmp_path: Path
) -> None:
    detscope("train", "tiny_ssd", "--device", gpu, "--steps", "20", "--precision", precision)
    run = load_run((tmp_path / "runs" / "latest").resolve())
    assert run.info["costs"]["peak"]["precision"] == precision
    check_device_clock(newest_run(tmp_path))


def test_a_yolo_like_script_is_recorded_and_prints_what_it_prints_alone(
    detscope: Command, gpu: str, tmp_path: Path
) -> None:
    import subprocess
    import sys

    script = shutil.copy(YOLO_LIKE, tmp_path)
    alone = subprocess.run([sys.executable, script, gpu], capture_output=True, text=True, check=True)
    watched = detscope("run", str(script), gpu)
    assert alone.stdout.splitlines()[-1] in watched.stdout
    check_device_clock(newest_run(tmp_path))


def test_the_second_gpu_is_used_alone(detscope: Command, gpu: str, tmp_path: Path) -> None:
    if count_gpus()[0] < 2:
        pytest.skip("one GPU")
    detscope("train", "tiny_ssd", "--device", "cuda:1", "--steps", "20")
    summary = newest_run(tmp_path)
    check_device_clock(summary)
    assert {one.source for one in summary.telemetry if one.source.startswith("cuda")} == {"cuda:1"}


def test_ranks_share_their_gradients(detscope: Command, gpu: str, tmp_path: Path) -> None:
    if count_gpus()[0] < 2:
        pytest.skip("one GPU: ranks need one each")
    detscope("train", "tiny_ssd", "--device", "cuda", "--ranks", "2", "--steps", "20")
    run = load_run((tmp_path / "runs" / "latest").resolve())
    assert run.info["agreement"]["weights_equal"]


@pytest.mark.parametrize(("tool", "program"), [("systems", "nsys"), ("compute", "ncu")])
def test_nvidias_tools_record_a_window(
    tool: str, program: str, detscope: Command, gpu: str, tmp_path: Path
) -> None:
    if find_nsight(program) is None:
        pytest.skip(f"{program} is not on this machine")
    detscope("train", "tiny_ssd", "--device", gpu, "--nsight", tool, "--window", "5:8", "--batch-size", "2")
    run = load_run((tmp_path / "runs" / "latest").resolve())
    assert run.info["nsight"]["tool"] == tool
    assert run.table("device_events" if tool == "systems" else "kernel_metrics").height


def test_too_large_a_batch_is_out_of_memory_and_says_so(detscope: Command, gpu: str, tmp_path: Path) -> None:
    detscope(
        "train", "fasterrcnn_resnet50_fpn", "--device", gpu, "--steps", "4", "--batch-size", "4096",
        "--weights", "none", "--memory", "--set", "data.images=4096", code=4,
    )  # fmt: skip
    assert load_run((tmp_path / "runs" / "latest").resolve()).status == "oom_device"
