"""What recording costs: bare loop, phases, modules, ops and plain torch.profiler, side by side."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.sidebyside import interleave, middle_ms, ratio, verdict
from detscope.analyze.summary import summarize
from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.loading import collate_batch
from detscope.data.registry import open_dataset
from detscope.loops.train import TrainHooks, TrainPlan, train_model
from detscope.machine.accelerator import Accelerator
from detscope.record.model.borders import BorderWriter
from detscope.record.model.probes import ModelProbes
from detscope.record.operators.profiler import OperatorWindow
from detscope.record.recorder import Recorder
from detscope.record.steps.events import EventBuffer
from detscope.record.steps.nodes import NodeTable
from detscope.report.trace import write_trace
from detscope.runs.reader import load_run
from detscope.sessions.train.loop import make_optimizer
from detscope.zoo.contract import BuildOptions, BuiltModel
from detscope.zoo.registry import build_model

MODELS = ("tiny_fasterrcnn", "tiny_ssd")
STEPS = 6
ROUNDS = 24


class Workbench:
    """One model, one optimizer, the same batches in memory for every variant."""

    def __init__(self, name: str, folder: Path) -> None:
        dataset = open_dataset(DataSettings(root=str(folder / "data"), images=2 * STEPS))
        items = [dataset[index] for index in range(2 * STEPS)]
        self.batches: list[Any] = [collate_batch(items[i : i + 2]) for i in range(0, 2 * STEPS, 2)]
        self.built: BuiltModel = build_model(
            name, BuildOptions(num_classes=len(dataset.classes), weights="none")
        )
        self.model = self.built.module.train()
        self.optimizer = make_optimizer(self.model, TrainingSettings(learning_rate=1e-5))
        self.folder = folder

    def plainest(self) -> None:
        """The loop a person would write."""
        for images, targets in self.batches:
            loss = sum(self.model(images, targets).values())
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            self.optimizer.step()

    def bare(self) -> None:
        """Our loop, nobody listens."""
        train_model(self.model, self.batches, self.optimizer, TrainPlan())

    def recorder(self, level: Any) -> Recorder:
        """A recorder as `detscope train` makes it, without bare steps between."""
        return Recorder(
            self.model,
            self.optimizer,
            self.folder / "runs",
            level=level,
            stages=self.built.stages,
            observers=self.built.observers,
            warmup_steps=0,
            bare_every=0,
            ops_steps=STEPS,
        )


def recorded(bench: Workbench, level: str) -> Callable[[], None]:
    """Our loop with a recorder that stays attached over all rounds: steps and the pauses between them."""
    recorder = bench.recorder(level)
    recorder.__enter__()

    def run() -> None:
        train_model(
            bench.model, bench.batches, bench.optimizer, TrainPlan(), hooks=TrainHooks(recorder.steps)
        )
        recorder.attach_probes("nothing")  # the other variants share the model

    return run


def operators(bench: Workbench) -> Callable[[], None]:
    """Operators from start to figures: record, attribute, tables, trace, summary."""

    def run() -> None:
        recorder = bench.recorder("ops")
        recorder.schedule = type(recorder.schedule)(0, 0, STEPS, operators_after=0)
        with recorder:
            train_model(
                bench.model, bench.batches, bench.optimizer, TrainPlan(), hooks=TrainHooks(recorder.steps)
            )
        write_trace(load_run(recorder.run))
        summarize(recorder.run)
        shutil.rmtree(recorder.run)

    return run


def plain_profiler(bench: Workbench, trace: str) -> Callable[[], None]:
    """torch.profiler with the same options, and its export: a compressed trace, as ours, or a plain one."""

    def run() -> None:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as profile:
            bench.plainest()
        profile.export_chrome_trace(str(bench.folder / trace))

    return run


def hook_pair_us(rounds: int = 7, calls: int = 20_000) -> float:
    """Cost of one module's pair of hooks, with an autograd mark to set: best of several rounds."""

    class Identity(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Holder(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, measure: Callable[[nn.Module], float]) -> float:
            return measure(self.inner)

    def loop(module: nn.Module) -> float:
        best = float("inf")
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(calls):
                module(x)
            best = min(best, time.perf_counter() - start)
            buffer.take_events()
        return best / calls * 1e6

    x = torch.ones(1)
    buffer = EventBuffer()
    bare, probed = Identity(), Identity()
    bare_us = loop(bare)
    holder, nodes = Holder(probed), NodeTable()
    probes = ModelProbes(holder, nodes, BorderWriter(buffer), "all", (), (), *[lambda *_: None] * 2)
    probes.attach_modules(modules=True)
    recorded_us = holder(loop)  # inside of a recorded call, as all but the outermost
    probes.remove_all()
    return recorded_us - bare_us


def main() -> None:
    """Print the table."""
    print("\nRecording a training step, as ratios (median of rounds, 95 % interval)")
    print(f"one module's pair of hooks: {hook_pair_us():.2f} us (aim 6)")
    window = OperatorWindow(Accelerator("cpu"))  # the profiler's first start initialises it
    window.start()
    window.stop()
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Workbench(name, Path(folder))
            light = interleave(
                {
                    "plainest loop": bench.plainest,
                    "bare loop": bench.bare,
                    "phases": recorded(bench, "phases"),
                    "modules": recorded(bench, "modules"),
                },
                ROUNDS,
            )
            heavy = interleave(
                {
                    "torch.profiler, .json.gz": plain_profiler(bench, "trace.json.gz"),
                    "torch.profiler, .json": plain_profiler(bench, "trace.json"),
                    "ops": operators(bench),
                },
                ROUNDS // 2,
            )
            print(f"\n{name}: plainest loop {middle_ms(light['plainest loop'], STEPS):.1f} ms per step")
            for variant, base, bound in (
                ("bare loop", "plainest loop", 1.01),
                ("phases", "bare loop", 1.01),
                ("modules", "bare loop", 1.03),
            ):
                found = ratio(light, variant, base)
                print(f"  {variant:10} / {base:24} {found}  {verdict(found, bound)}")
            for base in ("torch.profiler, .json.gz", "torch.profiler, .json"):
                found = ratio(heavy, "ops", base)
                print(f"  {'ops':10} / {base:24} {found}  {verdict(found, 1.05)}")
