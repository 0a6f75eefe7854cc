"""Loops whose memory grows in several ways, or does not, each recorded; for a process of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from detscope import Recorder

BYTES = 6_000_000
history: list[torch.Tensor] = []


class Keeper:
    """Keeps bytes in an attribute, below a key."""

    def __init__(self) -> None:
        self.blobs: dict[str, list[bytes]] = {"all": []}

    def keep(self, blob: bytes) -> None:
        self.blobs["all"].append(blob)


def batches() -> Iterator[torch.Tensor]:
    for _ in range(36):
        yield torch.rand(2, 3, 96, 96)


def record(kind: str, folder: Path) -> dict:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    keeper, linked = Keeper(), ()
    graphs: list[torch.Tensor] = []
    total = torch.zeros(())
    with Recorder(model, optimizer, folder, traced_steps=0, telemetry_hz=0) as recorder:
        for batch in recorder.steps(list(batches())):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if kind == "tensors":
                history.append(torch.ones(BYTES // 4))
            elif kind == "graphs":
                graphs.append(torch.ones(BYTES // 4, requires_grad=True).exp().sum())
            elif kind == "bytes":
                keeper.keep(b"x" * BYTES)
            elif kind == "sum":
                total = total + torch.ones(BYTES // 4, requires_grad=True).exp().sum()
            elif kind == "linked":
                linked = (b"x" * BYTES, linked)
    return {"growth": recorder.writer.info["growth"], "run": str(recorder.run)}


def main() -> None:
    folder = Path(sys.argv[1])
    answers = {}
    for kind in ("steady", "tensors", "graphs", "bytes", "sum", "linked"):
        answers[kind] = record(kind, folder)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
