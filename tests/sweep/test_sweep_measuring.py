"""Trials that measure real networks, in processes with torch."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from sweep_samples import write_plan
from test_trial_endings import until

from detscope.machine.accelerator import Accelerator
from detscope.report.sweep_progress import SweepLines
from detscope.sessions.sweep import SweepOptions, run_sweep
from detscope.sweep import measure
from detscope.sweep.keys import read_environment
from detscope.sweep.measure import count_warmup, find_median, find_stop_reason
from detscope.sweep.outcome import Outcome
from detscope.sweep.plan import load_plan
from detscope.sweep.prepare import prepare_trials
from detscope.sweep.process import ProcessRunner, TrialProcess
from detscope.sweep.settings import MeasureRules, TrialLimits
from detscope.sweep.store import read_rows


def request_of(folder: Path, axes: str, more: str = "") -> dict[str, Any]:
    plan = load_plan(write_plan(folder, axes, more))
    return dict(prepare_trials(plan, {"": read_environment()}, {"": ""})[0].request)


@pytest.fixture(scope="module")
def reused() -> Iterator[Callable[[dict[str, Any]], Outcome]]:
    """One process with torch for all trials that end well."""
    runner = ProcessRunner(TrialLimits(), reuse=True)
    yield lambda request: runner.run_trial(request, threading.Event())
    runner.close_runner()


QUICK = "[measure]\nmax_seconds = 600\nmax_steps = 8"  # an interval needs six, however long they take


def test_training_and_inference_give_figures_that_belong_together(tmp_path: Path, reused: Any) -> None:
    found = {}
    for stage in ("training", "inference"):
        axes = f'network = "squeezenet1_1"\nimage_size = 64\nbatch_size = 2\nthreads = 1\nstage = "{stage}"'
        outcome = reused(request_of(tmp_path, axes, QUICK))
        assert outcome.status_text == "ok", outcome.message
        found[stage] = outcome.result
    training, inference = found["training"], found["inference"]
    # in every step the parts are within the whole, so the medians are in that order on any machine
    assert 0 < training["forward_ms"] <= training["step_ms"]
    assert 0 < training["backward_ms"] <= training["step_ms"]
    assert 0 < inference["forward_ms"] <= inference["step_ms"]
    assert training["step_low_ms"] <= training["step_ms"] <= training["step_high_ms"]
    assert training["images_per_s"] == pytest.approx(2000 / training["step_ms"])
    assert "backward_ms" not in inference
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
    assert outcome.status_text == "ok", outcome.message
    image = 3 * 224 * 224 * 4
    known = 1_000_000 + image + 4_000_000 + 2_000_000
    assert 0 <= outcome.result["allocated_bytes"] - known < 2_000  # boxes of the target


def test_a_memory_limit_gives_oom_host_then_skips_and_the_next_network_goes_on(tmp_path: Path) -> None:
    axes = (
        'network = ["squeezenet1_1", "tiny_ssd"]\nbatch_size = [1, 512, 1024]\nimage_size = 112\n'
        'threads = 1\nvariables = "memory"'
    )
    more = "[[exclude]]\nnetwork = 'tiny_ssd'\nbatch_size = '> 1'\n[limits]\nmemory = '400MiB'\n" + QUICK
    plan = load_plan(write_plan(tmp_path, axes, more))
    run_sweep(plan, SweepOptions(till_first_fail=True, isolation="batch"), SweepLines(quiet=True))
    rows = read_rows(tmp_path / "plan.db")
    assert [(row["network"], row["batch_size"], row["status"]) for row in rows] == [
        ("squeezenet1_1", 1, "ok"),
        ("squeezenet1_1", 512, "oom_host"),
        ("squeezenet1_1", 1024, "skipped (out of memory at batch 512)"),
        ("tiny_ssd", 1, "ok"),
    ]
    assert rows[1]["message"], "the words differ with the library that found no memory"


class Clock:
    """Time that passes only where the test says so."""

    now = 0.0

    def takes(self, seconds: float, result: Any = None) -> Callable[..., Any]:
        def work(*_args: object, **_more: object) -> Any:
            self.now += seconds
            return result

        return work


@pytest.mark.parametrize("stage", ["training", "inference"])
def test_a_step_is_its_wait_for_data_and_its_parts(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    loss = SimpleNamespace(backward=clock.takes(5))
    module = SimpleNamespace(train=clock.takes(0))
    network: Any = SimpleNamespace(module=module, infer=clock.takes(2), loss=clock.takes(3, loss))
    optimizer = SimpleNamespace(step=clock.takes(1), zero_grad=clock.takes(0.5))
    no_torch = SimpleNamespace(bfloat16=None, float16=None)
    step = measure._TrialStep(
        no_torch, network, optimizer if stage == "training" else None, Accelerator("cpu"), "fp32"
    )
    batches: Any = iter(clock.takes(4, SimpleNamespace(inputs=None)), None)
    found = measure._measure_latency(step, batches, MeasureRules(), 2)
    wanted = {"training": (3000, 13_500), "inference": (2000, 6000)}[stage]
    assert (found["forward_ms"], found["step_ms"]) == pytest.approx(wanted)
    assert found.get("backward_ms") == (pytest.approx(5000) if stage == "training" else None)
    assert found["images_per_s"] == pytest.approx(2000 / wanted[1])


def worker_of(process: TrialProcess, watching: threading.Thread) -> psutil.Process | None:
    """A loader worker of the trial; None if it ended without one."""
    while watching.is_alive():
        with contextlib.suppress(psutil.NoSuchProcess):
            # importing torch starts helpers too
            for child in psutil.Process(process.process_id).children():
                if child.name() == "pt_data_worker":
                    return child
        time.sleep(0.05)
    return None


def with_a_worker_told(number: int, request: dict[str, Any], limit_s: float) -> tuple[Outcome, int | None]:
    """How a trial ends one of whose workers gets a signal, and which one that was."""
    process = TrialProcess()
    found: list[Outcome] = []
    limits = TrialLimits(time_s=limit_s)
    watching = threading.Thread(
        target=lambda: found.append(process.run_request(request, limits, threading.Event()))
    )
    watching.start()
    worker = worker_of(process, watching)
    while worker is not None and watching.is_alive():
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.send_signal(number)  # again and again: somebody else may wake one that was stopped
        watching.join(0.02)
    watching.join()
    process.end_group()
    if worker is not None:
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    return found[0], worker and worker.pid


@pytest.fixture
def endless(tmp_path: Path) -> dict[str, Any]:
    axes = 'network = "squeezenet1_1"\nimage_size = 64\nbatch_size = 2\nthreads = 1\nnum_workers = 1'
    rules = "max_seconds = 600\nmax_steps = 100000\nmin_steps = 100000"
    return request_of(tmp_path, axes, f"[measure]\n{rules}")


@pytest.mark.processes
def test_a_loader_worker_that_dies_is_named(endless: dict[str, Any]) -> None:
    outcome, worker = with_a_worker_told(signal.SIGKILL, endless, 600)
    assert outcome.kind == "error", outcome
    assert outcome.detail.startswith(f"lost a loader worker: DataLoader worker (pid(s) {worker})") or (
        f"DataLoader worker (pid {worker}) is killed by signal" in outcome.detail
    )
    assert outcome.luck


@pytest.mark.processes
def test_a_loader_worker_that_hangs_times_out_and_the_place_is_told(endless: dict[str, Any]) -> None:
    for limit_s in (4, 20, 100, 500):  # a machine may need the shorter ones to get so far
        outcome, _ = with_a_worker_told(signal.SIGSTOP, endless, limit_s)
        assert outcome.kind == "timeout", outcome
        if "dataloader.py" in outcome.message:
            return
    raise AssertionError(outcome)


def test_measuring_stops_at_the_interval_the_time_or_the_steps() -> None:
    rules = MeasureRules(target_interval=0.05, min_steps=6, max_steps=50, max_seconds=10)
    assert find_stop_reason([0.1] * 5, rules) is None
    assert find_stop_reason([0.1] * 6, rules) == "interval"
    assert find_stop_reason([0.01] * 6, rules) is None  # a twentieth of a second is too short a look
    noisy = [0.1, 0.2] * 20
    assert find_stop_reason(noisy, rules) is None
    assert find_stop_reason([0.01, 0.02] * 25, rules) == "steps"
    assert find_stop_reason([20.0], rules) is None
    assert find_stop_reason([20.0, 21.0], rules) == "time"


def test_slow_first_steps_are_found_and_the_median_is_that_of_the_rest() -> None:
    series = [1.0] * 8 + [0.1] * 20
    assert count_warmup(series) == 8
    assert find_median(series[8:]).median == pytest.approx(0.1)


def test_the_interval_of_the_median_is_that_of_the_analysis() -> None:
    import random

    from detscope.analyze.stats import median_interval

    chance = random.Random(3)
    for count in (3, 6, 9, 30, 200, 1500):
        values = [chance.gauss(10, 1) for _ in range(count)]
        theirs, ours = median_interval(values), find_median(values)
        assert (theirs and (theirs.low, theirs.high)) == (ours.low and (ours.low, ours.high))
