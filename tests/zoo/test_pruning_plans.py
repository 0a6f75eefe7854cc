from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detscope.zoo.pruning.folder import format_ranges, parse_ranges
from detscope.zoo.pruning.layers import ChannelAxis, Side
from detscope.zoo.pruning.plan import (
    KEPT_AT_LEAST,
    Layer,
    Member,
    ParameterCount,
    bundle_channels,
    make_plan,
    order_removal,
    score_bundles,
)


@given(st.sets(st.integers(0, 500)))
def test_ranges_come_back_as_they_were(channels: set[int]) -> None:
    given_channels = np.array(sorted(channels), dtype=np.int64)
    assert parse_ranges(format_ranges(given_channels)).tolist() == given_channels.tolist()


def test_ranges_are_short() -> None:
    assert format_ranges(np.array([0, 1, 2, 3, 7, 9, 10])) == "0-3,7,9-10"


@pytest.mark.parametrize(
    "text", ["a", "3-1", "1,1", "5,2", "-4", "1-2-3", "0-99999999999", "0-999999999", "1,,2"]
)
def test_ranges_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_ranges(text)


def two_layers(channels: int, groups: int = 1) -> tuple[dict[str, Layer], list[list[Member]]]:
    """A 3 to `channels` layer whose outputs feed a second one with 10 outputs that stay."""
    first = Layer(
        {"out": Side(channels, (ChannelAxis("weight", 0, channels),))},
        {"weight": (channels, 3)},
        frozenset({"weight"}),
    )
    axis = ChannelAxis("weight", 1, channels, groups=groups)
    second = Layer(
        {"in": Side(channels, (axis,), groups)}, {"weight": (10, channels // groups)}, frozenset({"weight"})
    )
    all_of_them = np.arange(channels)
    group = [
        Member("first", "out", all_of_them, all_of_them),
        Member("second", "in", all_of_them, all_of_them),
    ]
    return {"first": first, "second": second}, [group]


def test_parameters_are_counted_without_pruning_anything() -> None:
    layers, groups = two_layers(16)
    bundles = bundle_channels(layers, groups)
    count = ParameterCount(layers, bundles, total=16 * 13 + 5)  # 5 belong to a layer that is never cut
    removed = np.zeros(bundles.count, dtype=bool)
    assert count.count_left(removed) == 213
    removed[[2, 7, 8]] = True
    assert count.count_left(removed) == 13 * 13 + 5


def test_a_grouped_layer_loses_the_same_channel_of_every_group() -> None:
    layers, groups = two_layers(16, groups=4)
    bundles = bundle_channels(layers, groups)
    assert bundles.count == 4
    owners = bundles.owners["first", "out"].reshape(4, 4)
    assert (owners == owners[0]).all()
    count = ParameterCount(layers, bundles, total=16 * 3 + 40)
    assert count.count_left(np.array([True, False, False, False])) == 12 * 3 + 30


def test_channels_that_only_part_of_a_grouped_layer_shares_stay() -> None:
    layers, _ = two_layers(16, groups=4)
    half = np.arange(8)
    bundles = bundle_channels(
        layers, [[Member("first", "out", half, half), Member("second", "in", half, half)]]
    )
    assert bundles.count == 0


def test_a_channel_named_by_two_groups_goes_with_both() -> None:
    layers, groups = two_layers(4)
    twice = [*groups, [Member("second", "in", np.array([1, 2]), np.array([0, 0]))]]
    bundles = bundle_channels(layers, twice)
    owners = bundles.owners["second", "in"]
    assert owners[1] == owners[2] and bundles.count == 3


@given(st.integers(3, 60), st.integers(0, 99), st.sampled_from(["random", "l1", "weighted"]))
def test_every_group_keeps_its_last_channels_and_levels_grow(channels: int, level: int, mode: str) -> None:
    layers, groups = two_layers(channels)
    bundles = bundle_channels(layers, groups)
    count = ParameterCount(layers, bundles, total=channels * 13)
    order = order_removal(score_bundles(mode, bundles, 1, np.arange(channels) * 1.0), bundles)  # type: ignore[arg-type]
    plan = make_plan(level, order, bundles, layers, count)
    kept = channels - len(plan.cuts["first"].removed["out"]) if plan.cuts else channels
    assert kept >= KEPT_AT_LEAST
    assert plan.parameters == kept * 13
    nearest = min(
        (100 * (1 - k / channels) for k in range(KEPT_AT_LEAST, channels + 1)), key=lambda x: abs(x - level)
    )
    assert abs(plan.level_reached - level) == pytest.approx(abs(nearest - level))
    assert bool(plan.why_not) == (abs(plan.level_reached - level) > 1)


def test_l1_takes_the_weakest_and_random_does_not_care() -> None:
    layers, groups = two_layers(40)
    bundles = bundle_channels(layers, groups)
    strength = np.arange(40)[::-1] * 1.0
    assert order_removal(score_bundles("l1", bundles, 0, strength), bundles)[:3].tolist() == [39, 38, 37]
    drawn = [
        order_removal(score_bundles("random", bundles, seed, strength), bundles).tolist()
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
