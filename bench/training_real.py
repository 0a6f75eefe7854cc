"""What training for real costs: one step with everything on against the plainest loop, side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.sidebyside import interleave, middle_ms, ratio, verdict
from bench.training_cost import STEPS, Workbench
from detscope.config.schema import TrainingSettings
from detscope.loops.ema import WeightAverage
from detscope.loops.train import LearningRate, TrainHooks, TrainPlan, train_model
from detscope.sessions.train.loop import make_optimizer

MODELS = ("tiny_fasterrcnn", "tiny_ssd")
ROUNDS = 24


def everything_on(bench: Workbench) -> Callable[[], None]:
    """The loop as `detscope train --eval-every` runs it: phases recorded, losses and rates kept, clipping.

    Averaged weights are optional and stand in a line of their own. Checkpoints and evaluations come
    between epochs and belong to no step.
    """
    return _real(bench, None)


def with_average(bench: Workbench) -> Callable[[], None]:
    """The same with averaged weights."""
    return _real(bench, WeightAverage(bench.model, 0.999))


def _real(bench: Workbench, average: WeightAverage | None) -> Callable[[], None]:
    recorder = bench.recorder("phases")
    recorder.__enter__()
    schedule = LearningRate("cosine", warmup_steps=100, total_steps=10_000)
    hooks = TrainHooks(each_batch=recorder.steps, on_losses=recorder.losses)

    def run() -> None:
        train_model(
            bench.model,
            bench.batches,
            bench.optimizer,
            TrainPlan(clip_norm=1e6),
            schedule,
            hooks,
            average=average,
        )
        recorder.rest()  # the other variants share the model

    return run


def main(rounds: int = ROUNDS) -> None:
    """Print the table."""
    print("\nTraining for real, as ratios to the loop a person would write (median of rounds, 95 % interval)")
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Workbench(name, Path(folder))
            bench.optimizer = make_optimizer(bench.model, TrainingSettings(learning_rate=1e-5))
            seconds = interleave(
                {
                    "plainest loop": bench.plainest,
                    "everything on": everything_on(bench),
                    "with averaged weights": with_average(bench),
                },
                rounds,
            )
            print(f"\n{name}: plainest loop {middle_ms(seconds['plainest loop'], STEPS):.1f} ms per step")
            for variant in ("everything on", "with averaged weights"):
                found = ratio(seconds, variant, "plainest loop")
                print(f"  {variant:22} / plainest loop  {found}  {verdict(found, 1.02)}")
