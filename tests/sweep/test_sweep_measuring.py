"""Trials that measure real networks, in processes with torch."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sweep_samples import write_plan

from detscope.report.terminal_sweep import SweepLines
from detscope.sessions.sweep import Options, run_sweep
from detscope.sweep.keys import environment_facts
from detscope.sweep.outcome import Outcome
from detscope.sweep.plan import load_plan
from detscope.sweep.plan_settings import Limits
from detscope.sweep.prepare import prepare
from detscope.sweep.process import ProcessRunner, TrialProcess
from detscope.sweep.samples import enough, middle_of, warmup_length
from detscope.sweep.store import read_rows


def request_of(folder: Path, axes: str, more: str = "") -> dict[str, Any]:
    plan = load_plan(write_plan(folder, axes, more))
    return dict(prepare(plan, {"": environment_facts()}, {"": ""})[0].request)


@pytest.fixture(scope="module")
def reused() -> Iterator[Callable[[dict[str, Any]], Outcome]]:
    """One process with torch for all trials that end well."""
    runner = ProcessRunner(Limits(time_s=120), reuse=True)
    yield lambda request: runner.run(request, threading.Event())
    runner.close()


QUICK = "[measure]\nmax_seconds = 0.5\nmax_steps = 20"


def test_training_and_inference_give_figures_that_belong_together(tmp_path: Path, reused: Any) -> None:
    found = {}
    for stage in ("training", "inference"):
        axes = f'network = "squeezenet1_1"\nimage_size = 64\nbatch_size = 2\nthreads = 1\nstage = "{stage}"'
        outcome = reused(request_of(tmp_path, axes, QUICK))
        assert outcome.status == "ok", outcome.message
        found[stage] = outcome.result
    training, inference = found["training"], found["inference"]
    assert training["forward_ms"] + training["backward_ms"] <= training["step_ms"] * 1.05
    assert training["step_low_ms"] <= training["step_ms"] <= training["step_high_ms"]
    assert training["images_per_s"] == pytest.approx(2000 / training["step_ms"])
    assert "backward_ms" not in inference
    assert inference["forward_ms"] == pytest.approx(inference["step_ms"], rel=0.05)
    weights = 4 * training["parameters"]
    images = 2 * 3 * 64 * 64 * 4
    # between steps: weights, SGD's momentum, images, and a few bytes of labels
    assert 2 * weights + images <= training["held_bytes"] < 2 * weights + images + 100
    assert training["allocated_bytes"] > 3 * weights  # with gradients
    assert weights + images < inference["allocated_bytes"] < training["allocated_bytes"]
    assert training["reserved_bytes"] is None
    assert training["process_bytes"] > training["process_base_bytes"] > 100e6
    assert training["stopped_by"] in ("interval", "time", "steps")


def test_allocated_memory_is_what_the_allocator_gave_out(tmp_path: Path, reused: Any) -> None:
    code = tmp_path / "known.py"
    code.write_text(
        "import torch\n"
        "class Known(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.zeros(250_000))\n"
        "    def forward(self, images, targets=None):\n"
        "        big = torch.zeros(1_000_000)\n"
        "        more = torch.zeros(500_000)\n"
        "        del big\n"
        "        return [{'boxes': more[:0].reshape(0, 4), 'labels': more[:0], 'scores': more[:0]}]\n"
        "def make(num_classes=2):\n"
        "    return Known()\n"
    )
    axes = 'network = "known.py:make"\nbatch_size = 1\nstage = "inference"'
    outcome = reused(request_of(tmp_path, axes, QUICK))
    assert outcome.status == "ok", outcome.message
    image = 3 * 224 * 224 * 4
    known = 1_000_000 + image + 4_000_000 + 2_000_000
    assert 0 <= outcome.result["allocated_bytes"] - known < 2_000  # boxes of the target


def test_a_memory_limit_gives_oom_host_then_skips_and_the_next_network_goes_on(tmp_path: Path) -> None:
    axes = (
        'network = ["squeezenet1_1", "tiny_ssd"]\nbatch_size = [1, 160, 256]\nimage_size = 112\nthreads = 1\n'
        'variables = "memory"'
    )
    more = "[[exclude]]\nnetwork = 'tiny_ssd'\nbatch_size = '> 1'\n[limits]\nmemory = '400MiB'\n" + QUICK
    plan = load_plan(write_plan(tmp_path, axes, more))
    run_sweep(plan, Options(till_first_fail=True, isolation="batch"), SweepLines(quiet=True))
    rows = read_rows(tmp_path / "plan.db")
    assert [(row["network"], row["batch_size"], row["status"]) for row in rows] == [
        ("squeezenet1_1", 1, "ok"),
        ("squeezenet1_1", 160, "oom_host"),
        ("squeezenet1_1", 256, "skipped (out of memory at batch 160)"),
        ("tiny_ssd", 1, "ok"),
    ]
    assert "can't allocate memory" in rows[1]["message"]


def workers_of(process: TrialProcess, stop_after: float = 60) -> list[psutil.Process]:
    ends = time.monotonic() + stop_after
    while time.monotonic() < ends:
        # importing torch starts helpers too
        children = psutil.Process(process.pid).children()
        found = [child for child in children if child.name() == "pt_data_worker"]
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("no loader worker appeared")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "error"), (signal.SIGSTOP, "timeout")])
def test_a_loader_worker_that_dies_is_named_and_one_that_hangs_times_out(
    tmp_path: Path, number: int, status: str
) -> None:
    axes = 'network = "squeezenet1_1"\nimage_size = 64\nbatch_size = 2\nthreads = 1\nnum_workers = 1'
    request = request_of(
        tmp_path, axes, "[measure]\nmax_seconds = 60\nmax_steps = 100000\ntarget_interval = 0.0001"
    )
    process = TrialProcess()
    found: list[Outcome] = []
    limits = Limits(time_s=60 if status == "error" else 4)
    watching = threading.Thread(target=lambda: found.append(process.run(request, limits, threading.Event())))
    watching.start()
    worker = workers_of(process)[0]
    os.kill(worker.pid, number)
    watching.join(timeout=90)
    outcome = found[0]
    assert outcome.kind == status, outcome
    if status == "error":
        assert outcome.detail.startswith(
            f"lost a loader worker: DataLoader worker (pid(s) {worker.pid})"
        ) or (f"DataLoader worker (pid {worker.pid}) is killed by signal" in outcome.detail)
        assert outcome.luck
    else:
        assert "dataloader.py" in outcome.message
    process.end()
    with contextlib.suppress(psutil.NoSuchProcess):  # gone, or about to be
        assert worker.status() == psutil.STATUS_ZOMBIE


def test_measuring_stops_at_the_interval_the_time_or_the_steps() -> None:
    from detscope.sweep.plan_settings import Measure

    rules = Measure(target_interval=0.05, min_steps=6, max_steps=50, max_seconds=10)
    assert enough([0.1] * 5, rules) is None
    assert enough([0.1] * 6, rules) == "interval"
    assert enough([0.01] * 6, rules) is None  # a twentieth of a second is too short a look
    noisy = [0.1, 0.2] * 20
    assert enough(noisy, rules) is None
    assert enough([0.01, 0.02] * 25, rules) == "steps"
    assert enough([20.0], rules) is None
    assert enough([20.0, 21.0], rules) == "time"


def test_slow_first_steps_are_found_and_the_median_is_that_of_the_rest() -> None:
    series = [1.0] * 8 + [0.1] * 20
    assert warmup_length(series) == 8
    assert middle_of(series[8:]).median == pytest.approx(0.1)


def test_the_interval_of_the_median_is_that_of_the_analysis() -> None:
    import random

    from detscope.analyze.stats import median_interval

    chance = random.Random(3)
    for count in (3, 6, 9, 30, 200, 1500):
        values = [chance.gauss(10, 1) for _ in range(count)]
        theirs, ours = median_interval(values), middle_of(values)
        assert (theirs and (theirs.low, theirs.high)) == (ours.low and (ours.low, ours.high))
