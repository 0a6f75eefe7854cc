"""Gradients of several batches in one step, however their batches were fetched."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import polars as pl
import torch
from script_listening import Net
from torch import nn
from torch.utils.data import DataLoader

EACH = 4


class Small(Net):
    """Takes images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1)[:, :8])


def images(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 3, 4, 4)


def batches(count: int) -> DataLoader[torch.Tensor]:
    return DataLoader(images(4 * count), batch_size=4)  # type: ignore[arg-type]


def backward(model: nn.Module, batch: torch.Tensor) -> None:
    (nn.functional.mse_loss(model(batch), torch.zeros(len(batch), 1)) / EACH).backward()


def check(heard: Any, steps: int, last_batches: int = EACH) -> None:
    assert heard.steps == steps
    parts = heard.script["parts"]["training"]
    assert parts["batches"] == (steps - 1) * EACH + last_batches
    assert (
        f"gradients are accumulated: {parts['batches'] / steps:.3g} batches per step" in heard.info["notes"]
    )
    assert heard.info["batch_size"] == 4


def test_batches_that_are_all_fetched_before_the_first_goes_forward_are_one_step_s(listen: Any) -> None:
    """As a trainer does that counts the targets of all batches of a step to scale their losses."""
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    with listen() as heard:
        for _ in range(2):
            iterator = iter(batches(5 * EACH))
            for _ in range(5):
                samples = [next(iterator) for _ in range(EACH)]
                for batch in samples:
                    model.train()
                    backward(model, batch)
                optimizer.step()
                model.zero_grad()
    check(heard, 10)
    steps = heard.table("steps")
    measured = steps.filter(pl.col("mode") == "recorded")
    assert measured.filter(pl.col("phase") == "data")["wall_ns"].min() > 0  # type: ignore[operator]
    content = heard.table("content").sort("step")
    assert content["images"].to_list() == [4 * EACH] * 10
    whole = steps.filter(pl.col("phase") == "step").sort("step")
    assert whole["epoch"].to_list() == [0] * 5 + [1] * 5


def test_the_rest_of_a_pass_is_a_step_of_its_own_also_where_fetching_it_hits_the_end(listen: Any) -> None:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    each = 2 * EACH
    with listen() as heard:
        iterator = iter(batches(2 * each + 6))
        while True:
            samples = list(itertools.islice(iterator, each))
            if not samples:
                break
            for batch in samples:
                backward(model, batch)
            optimizer.step()
            optimizer.zero_grad()
    assert heard.steps == 3
    assert heard.script["parts"]["training"]["batches"] == 2 * each + 6
    assert heard.table("content").sort("step")["images"].to_list() == [4 * each, 4 * each, 4 * 6]


def one_ahead(loader: Any) -> Iterator[Any]:
    iterator = iter(loader)
    following = next(iterator)
    while following is not None:
        current, following = following, next(iterator, None)
        yield current


def test_batches_that_are_fetched_one_ahead_are_accumulated(listen: Any) -> None:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    with listen() as heard:
        for number, batch in enumerate(one_ahead(batches(8 * EACH)), 1):
            backward(model, batch)
            if number % EACH == 0:
                optimizer.step()
                optimizer.zero_grad()
    check(heard, 8)
    assert heard.table("content").sort("step")["images"].to_list() == [4 * EACH] * 8


def test_a_trainer_that_fetches_one_ahead_and_all_of_a_step_at_once_uses_as_many_in_every_step(
    listen: Any,
) -> None:
    """The first step fetches one batch more than it uses, the last one less."""
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    with listen() as heard:
        for _ in range(2):
            iterator = one_ahead(batches(5 * EACH))
            for _ in range(5):
                for batch in [next(iterator) for _ in range(EACH)]:
                    backward(model, batch)
                optimizer.step()
                optimizer.zero_grad()
    check(heard, 10)
    assert heard.table("content").sort("step")["images"].to_list() == [4 * EACH] * 10


def test_batches_that_no_loader_made_are_accumulated(listen: Any) -> None:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters())
    with listen() as heard:
        for _ in range(8):
            for _ in range(EACH):
                backward(model, images())
            optimizer.step()
            optimizer.zero_grad()
    check(heard, 8)
    assert heard.table("content")["images"].to_list() == [4 * EACH] * 8


def test_two_backward_passes_of_one_batch_are_no_accumulation(listen: Any) -> None:
    model, critic = Small(), Small(16)
    first, second = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, critic))
    with listen() as heard:
        for batch in batches(8):
            critic(batch).mean().backward()
            second.step()
            (model(batch).mean() - critic(batch).mean()).backward()
            first.step()
    assert (heard.steps, heard.script["batches_per_step"]) == (8, 1)
    with listen() as heard:
        for batch, other in zip(batches(8), batches(8), strict=True):
            out = model(torch.cat([batch, other]))
            out[:4].mean().backward(retain_graph=True)
            out[4:].mean().backward()
            first.step()
    assert (heard.steps, heard.script["batches_per_step"]) == (8, 1)


def test_a_batch_that_goes_through_the_model_twice_is_one_batch_also_without_a_loader(listen: Any) -> None:
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with listen() as heard:
        for batch in list(batches(8)):
            model(batch).mean().backward()
            model(batch).square().mean().backward()  # as sharpness-aware minimisation does
            optimizer.step()
    assert (heard.steps, heard.script["batches_per_step"]) == (8, 1)
    held = torch.empty_like(batch)
    with listen() as heard:
        for _ in range(8):
            for batch in list(batches(2)):
                held.copy_(batch)
                model(held).mean().backward()
            optimizer.step()
    assert (heard.steps, heard.script["batches_per_step"]) == (8, 2)


def test_the_calls_of_a_closure_are_one_batch_and_an_optimizer_that_is_gone_is_waited_for_no_longer(
    listen: Any,
) -> None:
    def fit(batch: torch.Tensor) -> None:
        model = Small()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

        def go() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch[:]).square().mean()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(go)
        with torch.no_grad():
            model(batch)

    with listen() as heard:
        for _ in range(3):
            fit(torch.ones(4, 3, 8, 8))
            gc.collect()
    assert heard.steps == 12
    assert set(heard.table("content")["images"]) == {4}


def test_a_batch_is_as_large_as_it_was_where_few_steps_accumulate_many(listen: Any) -> None:
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        for step in range(6):
            for _ in range(40 if step == 3 else 1):
                backward(model, images())
            optimizer.step()
    assert heard.steps == 6
    assert heard.script["parts"]["training"]["batches"] == 45
    assert heard.info["batch_size"] == 4
