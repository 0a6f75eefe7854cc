"""Cases 1 and 2 of the fault list: slow starts, spread, durations that cannot be."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from detscope.analyze.step.steady import judge_steadiness, outlier_indices, warmup_length
from detscope.analyze.step.steps import choose_typical_steps, images_per_second, step_figures, time_figures
from detscope.runs.writer import polars_schema


def steps_table(durations_ms: list[float], mode: str = "recorded") -> pl.DataFrame:
    rows = [(i, 0, mode, "step", i, int(ms * 1e6), None) for i, ms in enumerate(durations_ms)]
    return pl.DataFrame(rows, schema=polars_schema("steps"), orient="row")


def test_slow_first_iterations_are_warm_up_and_the_median_is_true():
    generator = np.random.default_rng(0)
    durations = [1000.0] * 5 + generator.normal(100, 1, 60).tolist()
    typical = choose_typical_steps(steps_table(durations))
    assert typical.warmup == [0, 1, 2, 3, 4]
    assert step_figures(steps_table(durations), typical).p50 == pytest.approx(100, rel=0.01)
    assert typical.steadiness.verdict == "stable"


def test_outliers_are_listed_and_stay_in_the_median():
    durations = [100.0, 101.0, 99.0] * 10
    durations[12] = 900.0
    typical = choose_typical_steps(steps_table(durations))
    assert typical.outliers == [12]
    assert 12 in typical.measured
    assert 12 not in typical.steps
    assert time_figures(durations).n == 30


def test_a_spread_of_15_percent_is_unstable_with_the_reason():
    durations = np.random.default_rng(0).normal(100, 15, 200).tolist()
    result = judge_steadiness(durations)
    assert result.verdict == "unstable"
    assert result.spread == pytest.approx(0.15, abs=0.01)
    assert "10 % is the limit" in result.reason


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_durations_that_cannot_be_are_an_error_and_never_ok(wrong):
    result = judge_steadiness([1.0, 1.0, wrong, 1.0, 1.0])
    assert result.verdict == "error"
    assert "1 of 5" in result.reason


def test_a_run_that_turns_unstable_late_is_unstable_and_says_where():
    generator = np.random.default_rng(5)
    late = generator.normal(100, 1, 80).tolist() + (100 + 60 * generator.random(20)).tolist()
    result = judge_steadiness(late)
    assert result.spread < 0.05, "the whole does not show it"
    assert result.verdict == "unstable"
    assert "to 100 of 100" in result.reason or "to 88 of 100" in result.reason


def test_a_run_that_turns_slow_late_is_unstable():
    result = judge_steadiness([100.0, 101.0, 99.0, 100.0] * 15 + [130.0, 131.0, 129.0] * 4)
    assert result.verdict == "unstable"
    assert "all of them by 1 %" in result.reason or "longer than" in result.reason


def test_even_noise_below_the_limit_and_lone_outliers_stay_stable():
    for seed in range(200):
        durations = np.random.default_rng(seed).normal(100, 4, 100)
        durations[::13] *= 3
        assert judge_steadiness(durations.tolist()).verdict == "stable", seed
    assert judge_steadiness([100.0] * 9 + [300.0] * 2).verdict == "stable", "too few to be judged by parts"


def test_three_steps_are_too_few_to_speak_of_a_spread():
    assert judge_steadiness([1.0, 1.0, 1.0]).verdict == "too few"


def test_a_steady_series_has_neither_warm_up_nor_outliers():
    durations = np.random.default_rng(3).normal(100, 2, 50).tolist()
    assert warmup_length(durations) == 0
    assert outlier_indices(durations) == []


def test_what_is_rare_is_looked_for_in_bare_steps_too_and_the_median_is_that_of_recorded_ones():
    bare, durations = range(1, 100, 2), np.random.default_rng(5).normal(100, 2, 100)
    durations[[*bare][-8:]] += 200  # every recorded step is fast
    rows = [
        (step, 0, "bare" if step in bare else "recorded", "step", step, int(ms * 1e6), None)
        for step, ms in enumerate(durations)
    ]
    table = pl.DataFrame(rows, schema=polars_schema("steps"), orient="row")
    found = step_figures(table, choose_typical_steps(table))
    assert (found.n, found.mean_n) == (50, 100)
    assert found.p50 == pytest.approx(100, rel=0.02) and found.p95 == pytest.approx(300, rel=0.02)
    assert found.p99 is None and found.p99_why == "needs 459"


def test_speed_and_mean_are_those_of_all_steps_also_where_all_bare_ones_were_fast():
    slow_then_fast = [588.0, 188.0] * 20  # two workers, one of them slow
    modes = ["bare" if step % 4 == 1 else "recorded" for step in range(40)]
    rows = [
        (step, 0, mode, "step", step, int(ms * 1e6), None)
        for step, (mode, ms) in enumerate(zip(modes, slow_then_fast, strict=True))
    ]
    table = pl.DataFrame(rows, schema=polars_schema("steps"), orient="row")
    content = pl.DataFrame({"step": list(range(40)), "images": [2] * 40})
    typical = choose_typical_steps(table)
    assert step_figures(table, typical).mean == pytest.approx(388)
    assert step_figures(table, typical).n == 30
    assert images_per_second(table, content, typical) == pytest.approx(2 / 0.388)


def test_bare_steps_of_a_slow_start_do_not_count():
    rows = [(0, 0, "recorded", "step", 0, 9 * 10**8, None), (1, 0, "bare", "step", 1, 9 * 10**8, None)]
    rows += [(step, 0, "recorded", "step", step, 10**8, None) for step in range(2, 20)]
    table = pl.DataFrame(rows, schema=polars_schema("steps"), orient="row")
    assert choose_typical_steps(table).timed == list(range(2, 20))
