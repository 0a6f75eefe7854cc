"""What is accepted: changes that are faster beyond doubt and leave the results alone, and no others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compared_runs import make_run
from detscope.analyze.compare.looks import RiskSpender, spend_evenly
from detscope.analyze.compare.results import Key, check_results, read_results
from detscope.analyze.compare.student import ratio_for
from detscope.analyze.compare.trying import (
    DECISION_RISK,
    LEAST_PAIRS,
    Attempt,
    PairJudge,
    RunCost,
    read_cost,
    weigh_results,
)
from detscope.errors import InputError
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter

ROUNDS = 12


def costs(times: Sequence[float]) -> list[RunCost]:
    return [RunCost(time, time / 2, 30) for time in times]


def try_change(seed: int, factor: float, noise: float, rounds: int = ROUNDS) -> Attempt:
    """A try of processes whose times vary so much, looked at as `try` looks."""
    draw, judge = np.random.default_rng(seed), PairJudge(rounds)
    times = 20 * np.exp(draw.normal(0, noise, (2, rounds))) * np.array([[1.0], [factor]])
    for pairs in range(1, rounds + 1):
        attempt, decided = judge.look_at(costs(times[0][:pairs]), costs(times[1][:pairs]), pairs == rounds)
        if decided:
            break
    return attempt


def test_a_large_gain_is_accepted_after_the_fewest_pairs_and_lies_in_its_interval() -> None:
    found = try_change(1, 0.7, 0.02)
    assert found.verdict == "accept" and found.time is not None and found.time.gain_ci95 is not None
    assert found.time.pairs == LEAST_PAIRS and found.time.per == "image"
    assert found.time.gain_ci95[0] < 0.3 < found.time.gain_ci95[1]


def test_a_slower_change_is_rejected_and_a_noisy_one_undecided() -> None:
    assert try_change(2, 1.3, 0.02).verdict == "reject"
    assert try_change(3, 0.95, 0.1).verdict == "undecided"


def test_a_gain_that_nobody_should_change_code_for_is_not_accepted() -> None:
    found = try_change(4, 0.997, 0.0005)
    assert found.verdict == "reject" and "no gain" in found.why


@pytest.mark.parametrize("pairs", range(1, LEAST_PAIRS))
def test_fewer_than_six_pairs_decide_nothing_however_clear_they_look(pairs: int) -> None:
    before, after = costs([20.0 + 0.01 * number for number in range(pairs)]), costs([10.0] * pairs)
    found, decided = PairJudge(pairs).look_at(before, after, is_last=True)
    assert found.verdict == "undecided" and not decided and f"{LEAST_PAIRS} are the least" in found.why


def test_of_a_thousand_changes_that_do_nothing_one_is_taken_for_faster() -> None:
    """By the levels of all looks, on 60,000 tries at once; the least gain of 1 % is not even asked for."""
    looks = RiskSpender(ROUNDS, DECISION_RISK, spend_evenly)
    draw = np.random.default_rng(0).normal(0, 1, (60_000, ROUNDS))
    faster = np.zeros(len(draw), dtype=bool)
    for pairs in range(LEAST_PAIRS, ROUNDS + 1):
        level = looks.take_look(pairs, pairs == ROUNDS)
        seen = draw[:, :pairs]
        error = seen.std(axis=1, ddof=1) / math.sqrt(pairs)
        faster |= seen.mean(axis=1) < -ratio_for(level, pairs - 1.0) * error
    assert faster.mean() < 1.3 / 1000


def test_the_cost_of_a_run_is_the_mean_of_its_steps_per_image(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, steps=30)
    cost = read_cost(run)
    assert cost.image_ms == pytest.approx(cost.step_ms / 2) and 45 < cost.step_ms < 60 and cost.steps == 30
    writer = RunWriter(tmp_path, "train", "empty", {})
    writer.close_run("ok")
    with pytest.raises(InputError, match="no measured step"):
        read_cost(load_run(writer.folder))


def losses(*values: float) -> dict[Key, float]:
    return {("loss", step): value for step, value in enumerate(values)}


def test_results_are_equal_within_the_tolerance_and_the_largest_difference_is_named() -> None:
    base = losses(2.0, 1.0)
    close = check_results([base, base], [losses(2.0, 1.00001)])
    assert close.verdict == "equal" and close.difference is not None and close.difference.step == 1
    found = check_results([base, base], [base, losses(2.0, 1.5)])
    assert found.verdict == "different" and found.difference is not None
    assert found.difference.words == "loss of step 1: 1 and 1.5"
    assert check_results([base, base], [losses(2.0, 1.5)], tolerance=0.5).verdict == "equal"


@pytest.mark.parametrize("other", [losses(2.0), losses(2.0, math.nan), losses(2.0, math.inf)])
def test_a_loss_that_is_gone_or_no_number_is_different(other: dict[Key, float]) -> None:
    assert check_results([losses(2.0, 1.0)] * 2, [other]).verdict == "different"


def test_a_base_that_differs_from_itself_tells_nothing() -> None:
    found = check_results([losses(2.0), losses(2.1)], [losses(2.0)])
    assert found.verdict == "cannot tell" and found.why is not None
    assert "differs from itself by 0.048 (loss of step 0: 2 and 2.1)" in found.why
    assert check_results([{}, {}], [{}]).verdict == "cannot tell"
    assert check_results([losses(2.0), losses(2.1)], [losses(3.0)], math.inf).verdict == "not checked"


def test_a_small_part_of_the_loss_is_held_against_the_whole() -> None:
    base = losses(10.0) | {("loss_small", 0): 1e-7}
    assert check_results([base, base], [base | {("loss_small", 0): 2e-7}]).verdict == "equal"
    large = losses(10.0) | {("loss_small", 0): 5.0}
    assert check_results([large, large], [large | {("loss_small", 0): 5.1}]).verdict == "different"


def test_only_the_first_steps_and_counts_and_accuracy_are_results(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "infer", "small", {})
    writer.append_rows("losses", [(step, "loss", 1.0 + step) for step in range(9)])
    writer.append_rows("images", [(0, 0, "cat.jpg", 64, 64, 7, 2)])
    measured = [(None, 0.25), ("cat", 0.5)]
    writer.append_rows("accuracy", [(0, 8, "coco_box", "AP", name, value) for name, value in measured])
    writer.close_run("ok")
    assert read_results(load_run(writer.folder)) == {
        **losses(1.0, 2.0, 3.0, 4.0, 5.0),
        ("detections in cat.jpg", None): 7.0,
        ("detections above the score in cat.jpg", None): 2.0,
        ("coco_box AP", 8): 0.25,
    }


def test_nothing_is_accepted_that_changes_results_or_whose_results_are_not_known() -> None:
    fast = try_change(1, 0.7, 0.02)
    base = losses(2.0)
    for others, changed, verdict in (
        (base, base, "accept"),
        (base, losses(3.0), "reject"),
        (losses(2.1), base, "undecided"),
    ):
        judged = weigh_results(fast, check_results([base, others], [changed]))
        assert judged.verdict == verdict
    assert "loss of step 0: 2 and 3" in weigh_results(fast, check_results([base], [losses(3.0)])).why
