"""What recording costs in two ranks: the same steps with and without it, in the same processes."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

from bench.sidebyside import interleave, middle_ms, ratio, verdict
from bench.training_cost import STEPS, Workbench
from detscope.config.schema import TrainingSettings
from detscope.loops.train import TrainHooks, TrainPlan, train
from detscope.record.communication import CommunicationWatch
from detscope.sessions.train_parts import make_optimizer

MODELS = ("tiny_fasterrcnn", "tiny_retinanet")
RANKS = 2
ROUNDS = 16
AIM = 1.04


def without(bench: Workbench) -> Callable[[], None]:
    """Wrapped as a person would, nobody listens."""
    model = copy.deepcopy(bench.model)
    wrapped = DistributedDataParallel(model)
    optimizer = make_optimizer(model, TrainingSettings(learning_rate=1e-5))

    def run() -> None:
        train(wrapped, bench.batches, optimizer, TrainPlan())

    return run


def recorded(bench: Workbench, rank: int, level: Any) -> Callable[[], None]:
    """As `detscope train --ranks` does it: modules and collectives, written between steps."""
    bench = copy.copy(bench)
    bench.model = copy.deepcopy(bench.model)
    bench.built = copy.copy(bench.built)
    wrapped = DistributedDataParallel(bench.model)
    watch = CommunicationWatch(rank)
    watch.attach(wrapped)
    bench.optimizer = make_optimizer(bench.model, TrainingSettings(learning_rate=1e-5))
    recorder = bench.recorder(level)
    recorder.__enter__()
    recorder.between_steps = lambda done: recorder.writer.append("communication", watch.take(done - 1))
    hooks = TrainHooks(each_batch=recorder.steps, on_losses=recorder.losses)

    def run() -> None:
        train(wrapped, bench.batches, bench.optimizer, TrainPlan(), hooks=hooks)
        recorder.rest()

    return run


def _rank(rank: int, name: str, folder: str, rounds: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, (os.cpu_count() or RANKS) // RANKS))
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    own = Path(folder) / str(rank)
    bench = Workbench(name, own)
    variants = {
        "without": without(bench),
        "phases": recorded(bench, rank, "phases"),
        "modules": recorded(bench, rank, "modules"),
    }
    seconds = interleave(variants, rounds)  # every round ends in step: each step waits for all ranks
    if rank == 0:
        print(f"\n{name}, {RANKS} ranks: without {middle_ms(seconds['without'], STEPS):.1f} ms per step")
        for variant in ("phases", "modules"):
            found = ratio(seconds, variant, "without")
            print(f"  {variant:10} / without  {found}  {verdict(found, AIM)}")
    dist.barrier()
    dist.destroy_process_group()


def main(rounds: int = ROUNDS) -> None:
    """Print the table."""
    print("\nTwo ranks with recording, as ratios to the same without (median of rounds, 95 % interval)")
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(_rank, (name, folder, rounds), nprocs=RANKS)
