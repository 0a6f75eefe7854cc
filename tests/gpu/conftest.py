"""Tests on a real GPU; without one each is skipped, with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detscope.analyze.summary import RunSummary, summarize


def count_gpus() -> tuple[int, str]:
    """How many GPUs torch has here, and why none."""
    from detscope.machine.devices import count_devices

    return count_devices("cuda")


@pytest.fixture
def gpu() -> str:
    """The name of the first GPU."""
    count, why = count_gpus()
    if not count:
        pytest.skip(why)
    return "cuda:0"


@pytest.fixture
def detscope(gpu: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, in a folder of the test's own."""

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "detscope", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1800
        )
        assert done.returncode == code, done.stderr[-4000:]
        return done

    return run


def newest_run(folder: Path) -> RunSummary:
    """Figures of the run that was recorded last."""
    return summarize((folder / "runs" / "latest").resolve())


def check_device_clock(summary: RunSummary) -> None:
    """What holds of every run on a GPU: the device's clock, phases that are its step, host times beside."""
    assert summary.clocks.clock == "device", summary.clocks.why
    whole = summary.clocks.device_step_ms
    assert whole is not None and whole > 0
    assert sum(phase.ms for phase in summary.phases) == pytest.approx(whole, rel=0.01)
    assert summary.clocks.busy_ms is not None and 0 < summary.clocks.busy_ms <= whole * 1.001
    assert all(phase.host_ms is not None for phase in summary.phases)
    assert summary.clocks.bound is not None


def read_json(text: str) -> Any:
    """What a verb printed with --json."""
    return json.loads(text)
