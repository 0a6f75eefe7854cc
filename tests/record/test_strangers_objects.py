"""Objects of the script's own that answer to no name but their own, and fail with what nobody expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import detscope
from detscope.record.loader import count_tensors

WIDTH = 3


class Closed:
    """Whatever it does not have is a KeyError: `getattr(it, name, None)` raises too."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class ClosedList(Closed, list):  # type: ignore[type-arg]
    pass


class ClosedBatch(Closed):
    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __reduce__(self) -> tuple[type, tuple[torch.Tensor]]:
        return ClosedBatch, (self.x,)


class Double(Closed):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Indexed(Closed, Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.transform = Double()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(torch.full((WIDTH,), float(index)))

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Streamed(Closed, IterableDataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.transform = Double()

    def __iter__(self) -> Any:
        return (self.transform(torch.full((WIDTH,), float(index))) for index in range(8))


class Stack(Closed):
    def __init__(self, into: type) -> None:
        self.into = into

    def __call__(self, items: list[torch.Tensor]) -> Any:
        stacked = torch.stack(items)
        return ClosedBatch(stacked) if self.into is ClosedBatch else ClosedList([stacked])


class Loader(Closed, DataLoader):  # type: ignore[type-arg]
    pass


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_modules"][name]

    def forward(self, x: torch.Tensor) -> Any:
        return ClosedBatch(self.layer(x))


def train(model: nn.Module, loader: Any) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch.x if isinstance(batch, ClosedBatch) else batch[0]).x.square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make_training(data: type, into: type, workers: int) -> tuple[nn.Module, Loader]:
    torch.manual_seed(0)
    return Net(), Loader(data(), batch_size=2, num_workers=workers, collate_fn=Stack(into))


@pytest.mark.parametrize("into", [ClosedBatch, ClosedList])
@pytest.mark.parametrize("data", [Indexed, Streamed])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_of_such_objects_is_the_same_when_it_is_recorded(
    listen: Any, tmp_path: Path, workers: int, data: type, into: type
) -> None:
    plain = train(*make_training(data, into, workers))
    with listen() as heard:
        listened = train(*make_training(data, into, workers))
    model, loader = make_training(data, into, workers)
    with detscope.Recorder(model, out=tmp_path) as recorder:
        recorded = train(model, recorder.steps(loader))
    assert plain == listened == recorded
    assert heard.steps == 4


def test_a_loader_of_somebody_s_own_is_asked_for_nothing_but_batches(tmp_path: Path) -> None:
    class Batches(Closed):
        def __iter__(self) -> Any:
            return iter([ClosedBatch(torch.ones(2, WIDTH))] * 3)

    model = Net()
    with detscope.Recorder(model, out=tmp_path) as recorder:
        assert len(train(model, recorder.steps(Batches()))) == 3


def test_tensors_are_counted_once_and_a_batch_that_is_too_large_to_look_at_is_not_told() -> None:
    one = torch.ones(1)
    nested: list[Any] = [one, {"a": one, "b": (torch.ones(1), "text", 3)}]
    nested.append(nested)
    assert count_tensors(nested) == 2
    assert count_tensors([list(range(100)) for _ in range(1000)]) is None
