"""What recording memory costs: a step with and without it; from start to files against torch.profiler."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from bench.sidebyside import interleave, middle_ms, ratio, verdict
from bench.training_cost import STEPS, Workbench
from detscope.loops.train import TrainHooks, TrainPlan, train_model
from detscope.record.recorder import Recorder

MODEL = "tiny_fasterrcnn"
ROUNDS = 24


def recorder_of(bench: Workbench, memory_steps: int) -> Recorder:
    """A recorder whose steps are all memory steps."""
    return Recorder(
        bench.model,
        bench.optimizer,
        bench.folder / "runs",
        stages=bench.built.stages,
        observers=bench.built.observers,
        warmup_steps=0,
        bare_every=0,
        memory=True,
        memory_steps=memory_steps,
    )


class StepClock:
    """Times of the steps alone, as a recorder would see them; what happens between is left out."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def around(self, source: Callable[..., object]) -> Callable[..., object]:
        """The batches of `source`, with the time from each being there to the next being asked for."""

        def batches(loader: object) -> object:
            for batch in source(loader):  # type: ignore[attr-defined]
                start = perf_counter()
                yield batch
                self.seconds.append(perf_counter() - start)

        return batches


def step_times(bench: Workbench, rounds: int) -> dict[str, list[float]]:
    """Seconds of steps, bare and recorded with memory, interleaved round by round."""
    recorder = recorder_of(bench, 10**9)
    seconds: dict[str, list[float]] = {"bare step": [], "memory step": []}
    with recorder:
        for index in range(rounds + 1):
            for name in ("bare step", "memory step") if index % 2 else ("memory step", "bare step"):
                clock = StepClock()
                source = recorder.steps if name == "memory step" else iter
                hooks = TrainHooks(clock.around(source))  # type: ignore[arg-type]
                train_model(bench.model, bench.batches, bench.optimizer, TrainPlan(), hooks=hooks)
                recorder.rest()
                if index:  # the first round warms up
                    seconds[name].append(sum(clock.seconds))
    shutil.rmtree(recorder.run)
    return seconds


def recorded(bench: Workbench) -> Callable[[], None]:
    """From start to files: record, account, tables."""

    def run() -> None:
        recorder = recorder_of(bench, STEPS)
        with recorder:
            train_model(
                bench.model, bench.batches, bench.optimizer, TrainPlan(), hooks=TrainHooks(recorder.steps)
            )
        shutil.rmtree(recorder.run)

    return run


def plain_profiler(bench: Workbench, trace: str) -> Callable[[], None]:
    """torch.profiler with all that its memory views want, and its export."""

    def run() -> None:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            profile_memory=True,
            record_shapes=True,
            with_stack=True,
        ) as profile:
            bench.plainest()
        profile.export_chrome_trace(str(bench.folder / trace))

    return run


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("\nRecording memory, as ratios (median of rounds, 95 % interval)")
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(MODEL, Path(folder))
        steps = step_times(bench, ROUNDS)
        found = ratio(steps, "memory step", "bare step")
        print(f"\n{MODEL}: bare step {middle_ms(steps['bare step'], STEPS):.1f} ms")
        print(f"  {'memory step':14} / {'bare step':24} {found}  {verdict(found, 1.15)}")
        whole = interleave(
            {
                "torch.profiler, .json.gz": plain_profiler(bench, "trace.json.gz"),
                "torch.profiler, .json": plain_profiler(bench, "trace.json"),
                "memory": recorded(bench),
            },
            ROUNDS // 4,
        )
        for base in ("torch.profiler, .json.gz", "torch.profiler, .json"):
            found = ratio(whole, "memory", base)
            print(f"  {'memory, whole':14} / {base:24} {found}  {verdict(found, 1.0)}")
