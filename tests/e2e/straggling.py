"""A training in two ranks whose second may be slowed in its forward; losses are all-reduced by hand.

`--start` says how the ranks come to be: `env` as torchrun does it, `spawn` by this script itself, `file` by a
launcher of one's own, which gives every process its number and a file to meet at.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed import all_reduce  # a name that is bound before anybody could replace it
from torch.nn.parallel import DistributedDataParallel


class Slowed(torch.nn.Module):
    """Sleeps in its forward."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.sleep_s = sleep_s
        self.layer = torch.nn.Conv2d(3, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return self.layer(images)


def reduce_dict(losses: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As torchvision's reference training has it."""
    with torch.no_grad():
        names = sorted(losses)
        values = torch.stack([losses[name] for name in names])
        all_reduce(values)
        values /= dist.get_world_size()
        return dict(zip(names, values, strict=True))


def average_gradients(model: torch.nn.Module) -> None:
    """What DistributedDataParallel would do."""
    works = [all_reduce(one.grad, async_op=True) for one in model.parameters()]
    for work in works:
        work.wait()
    for one in model.parameters():
        one.grad /= dist.get_world_size()


def train(rank: int, options: argparse.Namespace) -> None:
    """One rank's training."""
    if options.start == "env":
        dist.init_process_group("gloo")
    else:
        meeting = f"file://{options.store}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.manual_seed(0)
    slow_s = options.slow_ms / 1e3 if dist.get_rank() == 1 else 0.0
    model: torch.nn.Module = torch.nn.Sequential(
        Slowed(slow_s), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(784, 9)
    )
    if options.gradients == "wrapper":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 9, (4,))
        found = model(images)
        losses = {
            "classes": torch.nn.functional.cross_entropy(found, labels),
            "size": found.square().mean(),
        }
        total = float(sum(reduce_dict(losses).values()))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        if options.gradients == "hand":
            average_gradients(model)
        optimizer.step()
    print(f"{dist.get_rank()} {total.hex()}\n", end="", flush=True)
    dist.destroy_process_group()
    # gloo's threads outlive the group, and may take a process down that ends (pytorch issue 190489)
    atexit.register(lambda: (sys.stdout.flush(), os._exit(0)))


def main() -> None:
    """Become the ranks, or one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", choices=("env", "spawn", "file"), default="env")
    parser.add_argument("--gradients", choices=("wrapper", "hand"), default="wrapper")
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--store")
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.start == "spawn":
        processes.spawn(train, (options,), nprocs=2)
    else:
        train(options.rank, options)


if __name__ == "__main__":
    main()
