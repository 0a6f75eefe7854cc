"""A loop of a test with the hooks of `detscope run` on, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from detscope.record.script.endings import ScriptStopped
from detscope.record.script.hooks import Hooks
from detscope.record.script.options import ScriptOptions
from detscope.record.script.tracker import ScriptTracker


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Listened:
    def __init__(self, options: ScriptOptions) -> None:
        self.tracker = ScriptTracker(options)
        self.hooks = Hooks(self.tracker)
        self.run: Path | None = None

    def __enter__(self) -> Listened:
        self.hooks.install()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.run = self.tracker.close_run(error)
        self.hooks.remove()
        if self.tracker.recording.failure:
            raise self.tracker.recording.failure
        return isinstance(error, ScriptStopped)

    @property
    def info(self) -> dict[str, Any]:
        assert self.run is not None
        return json.loads((self.run / "run.json").read_text())

    @property
    def script(self) -> dict[str, Any]:
        return self.info["script"]

    @property
    def steps(self) -> int:
        return self.script["parts"]["training"]["steps"]

    def table(self, name: str) -> pl.DataFrame:
        assert self.run is not None
        return pl.read_parquet(self.run / f"{name}.parquet")


def batches(count: int, **options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader([torch.randn(8) for _ in range(4 * count)], batch_size=4, **options)


def train(model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, criterion: Any = None) -> None:
    for batch in loader:
        loss = (criterion or nn.functional.mse_loss)(model(batch), torch.zeros(len(batch), 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
