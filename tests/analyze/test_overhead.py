"""What the measurement itself costs, from planted times."""

from __future__ import annotations

import polars as pl
import pytest

from detscope.analyze.step.overhead import measure_own_cost

MS = 10**6


def steps_table(modes: list[str], work: list[int], data: list[int]) -> pl.DataFrame:
    rows = [
        (step, 0, mode, phase, 0, data[step] if phase == "data" else data[step] + work[step])
        for step, mode in enumerate(modes)
        for phase in ("step", "data")
    ]
    return pl.DataFrame(rows, ["step", "epoch", "mode", "phase", "start_ns", "wall_ns"], orient="row")


def pauses(nanoseconds: list[int]) -> pl.DataFrame:
    return pl.DataFrame({"step": list(range(len(nanoseconds))), "pause_ns": nanoseconds})


def waits(wait_ns: list[int], receive_ns: int, worker: int) -> pl.DataFrame:
    many = len(wait_ns)
    return pl.DataFrame(
        {
            "step": list(range(many)),
            "region": ["batch"] * many,
            "worker": [worker] * many,
            "wait_ns": wait_ns,
            "receive_ns": [receive_ns] * many,
        }
    )


MODES = ["recorded", "recorded", "bare", "recorded"] * 6
WORK = [100 * MS if mode == "bare" else 104 * MS for mode in MODES]


def test_own_cost_compares_the_same_images_where_images_differ():
    images = [1, 2, 3, 3, 1, 1] * 5
    modes = ["recorded", "recorded", "bare", "recorded", "recorded", "bare"] * 5
    costs = {1: 10 * MS, 2: 20 * MS, 3: 90 * MS}
    pairs = zip(images, modes, strict=True)
    work = [costs[image] * (2 if mode == "recorded" else 1) for image, mode in pairs]
    steps = steps_table(modes, work, [5] * 30)
    found = measure_own_cost(steps, alike=dict(enumerate(images)))
    assert (found.recorded_over_bare, found.n) == (pytest.approx(2.0), 10)
    assert measure_own_cost(steps).recorded_over_bare != pytest.approx(2.0), "neighbours hold other images"


def test_own_cost_is_that_of_the_average_step_with_the_work_between_steps():
    steps = steps_table(MODES, WORK, [0] * 24)
    assert measure_own_cost(steps).value == pytest.approx(1 + 0.75 * 0.04)
    found = measure_own_cost(steps, pauses([2 * MS] * 24))
    assert found.value == pytest.approx(1 + 0.75 * 0.04 + 0.02)
    assert found.ci95 == (pytest.approx(found.value),) * 2
    assert found.between_steps_ms == pytest.approx(2.0)


def test_waiting_for_data_that_the_loop_makes_itself_is_part_of_the_plain_step():
    steps = steps_table(MODES, WORK, [100 * MS] * 24)
    alone = measure_own_cost(steps, pauses([0] * 24), waits([100 * MS] * 24, 0, worker=-1))
    assert alone.value == pytest.approx(1 + 0.75 * 0.04 / 2)


def test_what_is_taken_while_workers_lag_behind_costs_nothing():
    steps = steps_table(MODES, WORK, [0, 80 * MS] * 12)
    lagging = measure_own_cost(steps, pauses([2 * MS] * 24), waits([0, 80 * MS] * 12, 0, worker=0))
    assert lagging.value == pytest.approx(1.0)
    ready = measure_own_cost(steps, pauses([2 * MS] * 24), waits([0, 80 * MS] * 12, 80 * MS, worker=0))
    assert ready.value == pytest.approx(1 + (0.75 * 4 + 2) / 140), "batches lay ready: no worker lags"


def test_own_cost_is_not_told_from_fewer_than_five_bare_steps():
    for many in range(1, 5):
        found = measure_own_cost(steps_table(MODES[: 4 * many], WORK, [0] * 24))
        assert found.value is None
        assert found.n == many
        assert found.why == f"needs 5 bare steps with recorded ones beside them, this run has {many}"
    assert measure_own_cost(steps_table(MODES[:20], WORK, [0] * 24)).value is not None
    assert measure_own_cost(steps_table(["recorded"] * 9, WORK, [0] * 24)).value is None
