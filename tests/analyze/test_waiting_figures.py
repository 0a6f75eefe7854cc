"""Waiting for data: for its making, or for receiving what lies ready; operators in an order that stays."""

from __future__ import annotations

import polars as pl
import pytest

from detscope.analyze.step.loader import LoaderFigures, loader_figures
from detscope.analyze.step.operators import operator_figures
from detscope.analyze.step.steady import Steadiness
from detscope.analyze.step.steps import PhaseFigures, StepFigures, TypicalSteps
from detscope.analyze.verdict import training_verdict
from detscope.runs.writer import polars_schema

STEPS = list(range(10))
TYPICAL = TypicalSteps(
    "recorded", STEPS, STEPS, [], [], Steadiness(verdict="stable", reason="", spread=0.0), 100.0
)


def figures(wait_ns: int, receive_ns: int | None, tensors: int | None, worker: int = 0) -> LoaderFigures:
    """Ten steps of 100 ms with 2 images each, which a worker makes in 4 ms."""
    rows = [
        (step, worker, 1, "batch", step * 10**8, 4 * 10**6, 2, wait_ns, receive_ns, tensors) for step in STEPS
    ]
    table = pl.DataFrame(rows, schema=polars_schema("loader"), orient="row")
    return loader_figures(table, TYPICAL, 2.0, wait_ns / 1e6)


def said(loader: LoaderFigures) -> str:
    share = loader.wait_ms / 100
    shares = dict.fromkeys(("forward", "backward", "other"), (1 - share) / 5) | {"data": share}
    phases = [PhaseFigures(name=name, ms=100 * share, share=share) for name, share in shares.items()]
    return training_verdict(StepFigures(p50=100.0), phases, [], loader)


def test_batches_that_lie_ready_are_not_waited_for_but_received() -> None:
    loader = figures(30_000_000, 30_000_000, 14)
    assert loader.receive_ms == pytest.approx(30.0) and loader.ready_share == 1.0
    expected = "batches lie ready: receiving them takes 30.0 ms a step, 30 % of it"
    assert said(loader) == f"{expected} (14 tensors each)"
    assert said(figures(30_000_000, 30_000_000, 1)) == f"{expected} (one tensor each)"


def test_batches_that_are_still_being_made_are_waited_for() -> None:
    loader = figures(30_000_000, 6_000_000, 14)
    assert loader.receive_ms == pytest.approx(6.0) and loader.ready_share == 0.0
    waited = "waiting for data: 30 % of the step"
    assert said(loader) == f"{waited}; 1 worker delivers 500.0 images/s, the loop could take 28.6"


def test_without_workers_and_in_older_runs_nothing_is_said_of_receiving() -> None:
    alone, older = figures(30_000_000, None, None, worker=-1), figures(30_000_000, None, None)
    assert alone.receive_ms is None and older.tensors_per_batch is None
    assert said(alone).startswith("waiting for data: 30 % of the step; the loop itself loads")
    assert said(older).startswith("waiting for data: 30 % of the step; 1 worker delivers")


def test_operators_that_take_equally_long_come_by_name_and_module() -> None:
    names = [("aten::mul", "b"), ("aten::add", "b"), ("aten::mul", "a"), ("aten::add", "a")]
    columns = polars_schema("ops")
    rows = [
        {**dict.fromkeys(columns), "name": name, "module": module, "self_ns": 5, "count": 1}
        for name, module in names
    ]
    for order in (rows, rows[::-1], rows[1:] + rows[:1]):
        table = pl.DataFrame(order, schema=columns)
        assert [(row.name, row.module) for row in operator_figures(table, 1)] == sorted(names)
