"""Where the first step of a script begins, and where each pass over its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import torch
from script_listening import Net, batches, train
from torch import nn
from torch.utils.data import DataLoader

from detscope.analyze.step.loader import loader_figures
from detscope.analyze.step.steps import choose_typical_steps
from detscope.analyze.summary import summarize


def whole_steps(heard: Any) -> pl.DataFrame:
    return heard.table("steps").filter(pl.col("phase") == "step").sort("step")


class Built(Net):
    """Calls its body while it is made, and then takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.body(torch.zeros(1, 8))
        time.sleep(0.3)


class SlowOnce(nn.Module):
    """As somebody's first call is: it makes what later ones find ready."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "was_slow" not in vars(self):
            time.sleep(0.3)
            self.was_slow = True
        return x


class BuiltSlowly(Net):
    """Calls its body while it is made, which takes longer than any call of the whole later on."""

    def __init__(self) -> None:
        super().__init__()
        self.body.insert(0, SlowOnce())
        self.body(torch.zeros(1, 8))


@pytest.mark.parametrize("make", [Net, Built, BuiltSlowly])
@pytest.mark.parametrize("trains", [True, False])
def test_without_a_loader_the_first_step_begins_with_the_first_call_of_the_loop(
    listen: Any, make: Callable[[], nn.Module], trains: bool
) -> None:
    with listen() as heard:
        time.sleep(0.3)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        begin_ns = time.perf_counter_ns()
        with torch.set_grad_enabled(trains):
            for _ in range(8):
                if trains:
                    train(model, [torch.randn(4, 8)], optimizer)
                else:
                    model(torch.randn(4, 8))
        loop_ns = time.perf_counter_ns() - begin_ns
    steps = whole_steps(heard)
    assert steps.height == 8
    assert steps["wall_ns"].sum() <= loop_ns
    assert heard.script["parts"]["training" if trains else "evaluation"]["total_s"] * 1e9 <= loop_ns


class Fresh(DataLoader[Any]):
    """Has an `__iter__` of its own that makes a new iterator for every pass."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(iterator)


class Lasting(DataLoader[Any]):
    """One iterator for all passes, made with the loader: its sampler never ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for _ in range(len(self)):
            yield next(self.iterator)


class Endless:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


@pytest.mark.parametrize("kind", [DataLoader, Fresh, Lasting])
@pytest.mark.parametrize("workers", [0, 2])
def test_passes_of_loaders_with_an_iter_of_their_own_are_counted(
    listen: Any, kind: Any, workers: int
) -> None:
    data = [torch.randn(8) for _ in range(20)]
    with listen() as heard:
        loader = kind(data, batch_size=4, num_workers=workers)
        validation = kind(data[:8], batch_size=4)
        model = Built()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        begin_ns = time.perf_counter_ns()
        for _ in range(3):
            train(model, loader, optimizer)
            with torch.no_grad():
                for batch in validation:
                    model(batch)
        loop_ns = time.perf_counter_ns() - begin_ns
    steps = whole_steps(heard)
    training = steps.filter(pl.col("mode") != "evaluation")
    assert training["epoch"].to_list() == [0] * 5 + [1] * 5 + [2] * 5
    assert heard.script["parts"]["evaluation"]["steps"] == 6
    assert steps["wall_ns"].sum() <= loop_ns
    first = heard.table("content").filter(pl.col("first_of_epoch"))["step"].to_list()
    assert set(training["step"].to_list()[::5]) <= set(first)


class SlowToBegin:
    """Batches of indices whose iterator takes long to make, as starting workers does."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[list[int]]:
        time.sleep(0.2)
        return iter([[4 * number, 4 * number + 1] for number in range(5)])


@pytest.mark.parametrize("kind", [DataLoader, Fresh])
def test_starting_a_pass_is_waiting_for_data_also_where_a_subclass_starts_it(listen: Any, kind: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        loader = kind([torch.randn(8) for _ in range(20)], batch_sampler=SlowToBegin())
        for _ in range(2):
            train(model, loader, optimizer)
    waits = heard.table("steps").filter(pl.col("phase") == "data")
    of_first = waits.filter(pl.col("step").is_in([0, 5]))["wall_ns"]
    assert of_first.len() == 2
    assert of_first.min() >= 200_000_000  # type: ignore[operator]


def test_the_number_of_workers_is_the_loader_s_and_not_of_those_that_were_seen(listen: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        train(model, batches(4, num_workers=2), optimizer)
    assert heard.run is not None
    assert heard.info["num_workers"] == 2
    loader = heard.table("loader").filter(pl.col("worker") == 0)  # as if the other had made none of these
    typical = choose_typical_steps(heard.table("steps"))
    typical = replace(typical, measured=loader["step"].unique().to_list())
    seen = loader_figures(loader, typical, 4.0, 1.0)
    told = loader_figures(loader, typical, 4.0, 1.0, heard.info["num_workers"])
    assert (seen.num_workers, told.num_workers) == (1, 2)
    assert told.capacity_images_per_s == pytest.approx(2 * seen.capacity_images_per_s)
    assert summarize(heard.run).loader.num_workers == 2
