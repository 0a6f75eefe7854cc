"""What recording costs in two ranks: the same steps with and without it, in the same processes.

Steps of two busy cores scatter by a seventh, so variants alternate step by step, in an order drawn anew each
round, and a step lasts until both ranks have ended it. Every variant has two copies of the model, should it
matter where one lies in memory; by how much two copies without recording differ is shown as the noise.
The aim is for all steps together; in a typical step nothing is written to disk.
"""

from __future__ import annotations

import copy
import os
import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

from bench.sidebyside import Ratio, middle_ms, ratio, verdict
from bench.training_cost import Workbench
from detscope import marks
from detscope.analyze.stats import bootstrap_interval
from detscope.config.schema import TrainingSettings
from detscope.loops.train import Batch, TrainHooks, TrainPlan, train_model
from detscope.record.communication import CommunicationWatch
from detscope.record.device.telemetry import Reading, Source, Telemetry, default_sources
from detscope.runs import writer
from detscope.sessions.train.loop import make_optimizer

MODELS = ("tiny_fasterrcnn", "tiny_retinanet")
RANKS = 2
COPIES = 2
ROUNDS = 150
WARM_UP = 12  # rounds: as many as a recorder needs until steps repeat for it
AIM = 1.04
Step = Callable[[Batch], None]


def without(bench: Workbench) -> Step:
    """Wrapped as a person would, nobody listens."""
    model = copy.deepcopy(bench.model)
    wrapped = DistributedDataParallel(model)
    optimizer = make_optimizer(model, TrainingSettings(learning_rate=1e-5))

    def run(batch: Batch) -> None:
        train_model(wrapped, [batch], optimizer, TrainPlan())

    return run


class OwnTime:
    """A source of telemetry that is read while its recorder's steps run: others are not to pay for it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.name, self.notes = source.name, source.notes
        self.runs = False

    def read_values(self) -> list[Reading]:
        """What the source says, in its own time."""
        return self._source.read_values() if self.runs else []

    def close(self) -> None:
        """Release what the source holds."""
        self._source.close()


def recorded(bench: Workbench, rank: int, level: Any) -> Step:
    """As `detscope train --ranks` does it: modules and collectives, written between steps."""
    bench = copy.copy(bench)
    bench.model = copy.deepcopy(bench.model)
    wrapped = DistributedDataParallel(bench.model)
    watch = CommunicationWatch(rank)
    watch.attach_to_wrapper(wrapped)
    bench.optimizer = make_optimizer(bench.model, TrainingSettings(learning_rate=1e-5))
    recorder = bench.recorder(level)
    recorder.__enter__()
    recorder.between_steps = lambda done: recorder.writer.append_rows(
        "communication", watch.take_step(done - 1)
    )
    hooks = TrainHooks(each_batch=recorder.steps, on_losses=recorder.losses)
    assert recorder.telemetry is not None
    recorder.telemetry.stop()
    sources = [OwnTime(source) for source in default_sources()]
    recorder.telemetry = Telemetry(sources=sources)
    recorder.telemetry.start()

    def run(batch: Batch) -> None:
        _switch(sources, True)
        with marks.listening(recorder):
            train_model(wrapped, [batch], bench.optimizer, TrainPlan(), hooks=hooks)
        recorder.rest()
        _switch(sources, False)

    return run


def _switch(sources: Iterable[OwnTime], runs: bool) -> None:
    for source in sources:
        source.runs = runs


def _step_s(run: Step, batch: Batch) -> float:
    """One step with what follows it, from a common begin to the end of the slowest rank."""
    dist.barrier()
    start = perf_counter()
    run(batch)
    dist.barrier()
    return perf_counter() - start


def _seconds(variants: dict[str, Step], batches: list[Batch], rounds: int) -> dict[str, list[float]]:
    """Seconds of every variant in every round; all ranks draw the same order."""
    names, turns = list(variants), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for index in range(-WARM_UP, rounds):
        turns.shuffle(names)
        for name in names:
            spent = _step_s(variants[name], batches[index % len(batches)])
            if index >= 0:
                seconds[name].append(spent)
    return seconds


def _of_all(seconds: dict[str, list[float]], name: str, base: str) -> Ratio:
    """Time of all steps against that of all others, with a bootstrap interval: rare costs count."""
    pairs = np.asarray([seconds[name], seconds[base]]).T

    def of(sample: Any) -> float:
        return float(sample[:, 0].sum() / sample[:, 1].sum())

    interval = bootstrap_interval(pairs, of)
    middle = of(pairs)
    return Ratio(middle, interval.low if interval else middle, interval.high if interval else middle)


def _rank(rank: int, name: str, folder: str, rounds: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, (os.cpu_count() or RANKS) // RANKS))
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    bench = Workbench(name, Path(folder) / str(rank))
    variants: dict[str, Step] = {}
    for number in range(COPIES):  # copy by copy: no variant is always the last to find its place in memory
        variants[f"without {number}"] = without(bench)
        variants[f"phases {number}"] = recorded(bench, rank, "phases")
        variants[f"modules {number}"] = recorded(bench, rank, "modules")
    # each recorder has a share of the time only; it is to write after as many of its own steps as ever
    writer.FLUSH_EVERY_S *= len(variants)
    seconds = _seconds(variants, bench.batches, rounds)
    for variant in ("without", "phases", "modules"):
        copies = [seconds[f"{variant} {number}"] for number in range(COPIES)]
        seconds[variant] = [sum(values) / COPIES for values in zip(*copies, strict=True)]
    if rank == 0:
        print(f"\n{name}, {RANKS} ranks: without {middle_ms(seconds['without'], 1):.1f} ms per step")
        for variant, base in (("without 1", "without 0"), ("phases", "without"), ("modules", "without")):
            found = _of_all(seconds, variant, base)
            says = verdict(found, AIM) if base == "without" else "two copies of the same"
            typical = ratio(seconds, variant, base)
            print(f"  {variant:9} / {base:9}  {found}  typical step {typical}  {says}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main(rounds: int = ROUNDS) -> None:
    """Print the table."""
    print("\nTwo ranks with recording, as ratios to the same without (median of rounds, 95 % interval)")
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(_rank, (name, folder, rounds), nprocs=RANKS)
