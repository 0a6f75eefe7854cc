"""Utilisation, idle causes, blame and attribution on simulated programs whose answer is known."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_answers import answers
from made_files import tables
from made_program import TICK_NS, Simulation, Wishes

from detscope.analyze.device.figures import device_figures
from detscope.runs.writer import polars_schema

NO_METRICS = pl.DataFrame(schema=polars_schema("kernel_metrics"))

programs = st.builds(
    Wishes,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 3),
    modules=st.integers(1, 4),
    streams=st.integers(1, 3),
    loader=st.booleans(),
    backward=st.booleans(),
    synchronisations=st.sampled_from([0.0, 0.2, 0.6]),
    unlinked=st.sampled_from([0.0, 0.0, 0.2]),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_utilisation_idle_causes_and_blame_of_a_simulated_program_are_exact(wishes):
    program = Simulation(wishes).run()
    if not program.device:
        return
    figures = device_figures(*tables(program), NO_METRICS)
    right = answers(program)
    use = figures.utilisation
    assert use.window_ns == len(right.window) * TICK_NS
    assert use.kernels_ns == right.kernels * TICK_NS
    assert use.with_copies_ns == right.with_copies * TICK_NS
    causes = {cause.name: cause.idle_ns // TICK_NS for cause in figures.idle.causes}
    assert {cause: ticks for cause, ticks in causes.items() if ticks} == dict(+right.causes)
    blamed: Counter[tuple[str, str]] = Counter()
    for row in figures.blame:
        if row.cause == "synchronisation":
            blamed[row.call, row.runtime] += row.idle_ns // TICK_NS
    assert blamed == right.blame
    if figures.sm_efficiency.n:
        assert figures.sm_efficiency.numerator_ns == pytest.approx(right.efficiency * TICK_NS)
    modules = {row.name: row.kernels_ns // TICK_NS for row in figures.per.module}
    if modules:
        assert {name: ticks for name, ticks in modules.items() if ticks} == {
            name: ticks for name, ticks in right.per_module.items() if ticks
        }
