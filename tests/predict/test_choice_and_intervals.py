from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_networks import chain, made_samples

from detscope.errors import InputError, UsageError
from detscope.predict.memory.model import (
    DOES_NOT_FIT,
    FITS,
    TOO_CLOSE,
    decide_fit,
    fit_process,
    keep_outcomes,
    learn_limit,
)
from detscope.predict.models.choice import (
    UNTESTED,
    WIDEST,
    _clear_winner,
    conformal_line,
    conformal_width,
    conformal_width_across,
    fit_reach,
)
from detscope.predict.models.methods import fit_method
from detscope.predict.samples import StepCase, StepSample
from detscope.predict.score import score_method, split_samples


def test_the_width_holds_the_wanted_share_and_every_network_weighs_the_same() -> None:
    errors = np.concatenate([np.linspace(0, 1, 1000), np.linspace(0, 10, 10)])
    groups = ["many"] * 1000 + ["few"] * 10
    assert conformal_width(errors[:1000], groups[:1000]) == pytest.approx(0.9, abs=0.01)
    assert conformal_width(errors, groups) > 7  # ninety per cent of both, not of the thousand


def test_too_few_rows_give_no_finite_interval() -> None:
    assert conformal_width(np.array([0.1] * 5), ["x"] * 5) == float("inf")


def test_of_few_networks_the_worst_one_counts_for_those_to_come_and_of_many_the_share() -> None:
    few = np.concatenate([np.full(200, 0.1)] * 3 + [np.full(10, 0.5)])
    groups = ["a"] * 200 + ["b"] * 200 + ["c"] * 200 + ["worst"] * 10
    assert conformal_width_across(few, groups) == pytest.approx(0.5)
    many = np.repeat(np.linspace(0.1, 2.0, 20), 10)
    names = [str(place // 10) for place in range(200)]
    assert conformal_width_across(many, names) == conformal_width(many, names) < 2.0


def test_levels_far_apart_do_not_make_another_network_near() -> None:
    samples = [one for one in made_samples() if one.level in (0, 90)]
    reach = fit_reach(samples)
    names = np.array([one.network for one in samples])
    between = min(
        np.linalg.norm(reach.places[names == name][:, None] - reach.places[names != name][None], axis=2).min()
        for name in np.unique(names)
    )
    assert reach.radius <= 1.5 * between


def test_a_line_holds_the_wanted_share_at_every_distance_where_errors_grow() -> None:
    draw = np.random.default_rng(0)
    distances = draw.uniform(0, 3, 4000)
    errors = np.abs(draw.standard_normal(4000)) * (0.01 + 0.02 * distances)
    beside, growth = conformal_line(errors, distances, ["x"] * 4000)
    inside = errors <= beside + growth * distances
    for low, high in ((0, 1), (1, 2), (2, 3)):
        part = (distances >= low) & (distances < high)
        assert inside[part].mean() == pytest.approx(0.9, abs=0.03)
    assert conformal_line(errors[:5], distances[:5], ["x"] * 5) == (WIDEST, 0.0)
    assert conformal_line(np.zeros(50), distances[:50], ["x"] * 50) == (0.0, 0.0)


def test_a_case_beside_a_measured_one_has_a_narrower_interval_than_one_further_away() -> None:
    samples = made_samples()
    kept = [one for one in samples if one.level != 40]
    model = fit_method(kept, "latency", "hybrid")
    model = replace(model, near_width=0.4, beside_width=0.1)
    cases = [kept[7].case, next(one.case for one in samples if one.level == 40)]
    found = model.estimate_cases(cases)
    widths = np.log(found.upper / found.predicted)
    assert not found.extrapolated.any()
    assert widths[0] == pytest.approx(0.1, abs=1e-4)
    assert 0.1 < widths[1] < 0.4


def test_of_one_network_other_networks_are_said_to_be_within_a_factor_of_two_at_best() -> None:
    model = fit_method(made_samples(1), "latency", "physical")
    assert model.far_width >= UNTESTED


def test_levels_of_a_seen_network_are_near_and_a_strange_one_is_far() -> None:
    samples = made_samples()
    reach = fit_reach([one for one in samples if one.level != 40])
    between = [one.case for one in samples if one.level == 40]
    assert (reach.measure_distances(between) <= reach.radius).all()
    strange = StepCase(chain(512, depth=9, size=128), 64)
    assert reach.measure_distances([strange])[0] > reach.radius
    assert len(reach.find_outside(strange)) > 40


def test_intervals_of_unseen_levels_hold_what_was_measured() -> None:
    samples = made_samples()
    made = score_method(samples, "latency", "unseen-networks", "physical")
    assert made.mean < 0.05
    assert made.coverage > 0.7  # 61 of 75 here, some of them by the last digit
    assert set(made.by_network) == {"net0", "net1", "net2"}


def test_the_first_method_stays_for_unseen_networks_unless_another_is_clearly_better() -> None:
    networks = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    first = np.full(12, 0.2)
    lucky = np.repeat([0.05, 0.1, 0.35], 4)  # better on average, by one network
    better = np.repeat([0.1, 0.11, 0.12], 4)
    places = list(range(12))
    assert _clear_winner({"first": first, "lucky": lucky}, networks, places) == "first"
    assert _clear_winner({"first": first, "lucky": lucky, "better": better}, networks, places) == "better"


def test_auto_compares_all_methods_on_what_was_left_out_and_says_what_is_extrapolated() -> None:
    model = fit_method(made_samples(), "latency", "auto")
    assert set(model.errors["unseen networks"]) == {"physical", "hybrid", "trees"}
    assert "trees" not in (model.near_name, model.far_name)
    estimate = model.estimate_cases([StepCase(chain(512, depth=9, size=128), 64)])
    assert estimate.extrapolated.all()
    assert estimate.lower[0] < estimate.predicted[0] < estimate.upper[0]


def test_protocols_keep_what_is_asked_apart_from_what_is_seen() -> None:
    samples = made_samples()
    for protocol in ("random-rows", "unseen-networks", "unseen-families"):
        for split in split_samples(samples, protocol):
            assert not {id(one) for one in split.seen} & {id(one) for one in split.asked}
    assert [split.name for split in split_samples(samples, "unseen-networks")] == ["net0", "net1", "net2"]
    with pytest.raises(InputError, match="too few"):
        split_samples(samples[:25], "unseen-networks")


def test_an_unknown_method_and_simulated_memory_of_inference_are_refused() -> None:
    with pytest.raises(UsageError, match="no method 'magic'"):
        fit_method(made_samples(), "latency", "magic")
    with pytest.raises(UsageError, match="inference"):
        fit_method(made_samples(), "memory", "physical", training=False)


def test_the_process_term_finds_offset_slope_floor_and_ceiling() -> None:
    reserved = np.linspace(0, 8e9, 200)
    truth = np.clip(1e9 + 0.9 * reserved, 1.5e9, 6e9)
    term = fit_process(reserved, truth)
    assert np.abs(term.bound_bytes(reserved) / truth - 1).max() < 0.02
    assert term.unbounded_bytes(np.array([8e9]))[0] == pytest.approx(8.2e9, rel=0.02)


def test_where_memory_never_ended_a_larger_network_is_not_held_down_to_the_largest_seen() -> None:
    reserved = np.linspace(1e8, 8e9, 200)
    term = fit_process(reserved, 1e9 + 1.2 * reserved)
    assert term.bound_bytes(np.array([2e10]))[0] == pytest.approx(2.5e10, rel=0.02)


def test_the_limit_is_where_runs_begin_to_fail() -> None:
    predicted = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 3 < learn_limit(predicted, [True, True, True, False, False]) < 4
    assert learn_limit(predicted, [True] * 5) == float("inf")


@pytest.mark.parametrize(
    ("predicted", "width", "word"),
    [
        (50, 0.1, FITS),
        (95, 0.1, TOO_CLOSE),
        (105, 0.1, TOO_CLOSE),
        (130, 0.1, DOES_NOT_FIT),
        (112, 0.0, DOES_NOT_FIT),
    ],
)
def test_answers_are_plain_only_where_the_interval_is_on_one_side(
    predicted: float, width: float, word: str
) -> None:
    assert decide_fit(predicted, 100, width) == word


def test_a_case_that_ran_once_ran() -> None:
    case = StepCase(chain(8), 4)
    rows = [StepSample(case, "x", 0, passed=flag) for flag in (False, True, False)]
    assert [one.passed for one in keep_outcomes(rows)] == [True]
