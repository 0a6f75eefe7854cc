"""Which channels go: one ranking of all bundles, cut where the level is reached.

- `random`: every bundle has the same chance; layers lose about the same share.
- `l1`: in every group the bundles of the smallest mean absolute weight go first; groups lose the same share.
- `weighted`: random, with layers favoured by depth: the seed decides whether early layers are spared, late
  layers, or none. Networks of equal size and unlike shapes, which a cost model wants to see.

The ranking depends on the seed and not on the level: a network at 50 % is one at 30 % with more removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detscope.zoo.pruning.channels import KEPT_AT_LEAST, Bundles, Layer, ParameterCount
from detscope.zoo.pruning.layers import Indices, LayerCut

Mode = Literal["random", "l1", "weighted"]
MODES: tuple[Mode, ...] = ("random", "l1", "weighted")
TOLERANCE_POINTS = 1.0
_STEEPNESS = 2.0  # of `weighted`: the favoured end is exp(2), about 7 times, less likely to lose a channel

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """What is removed for a level, and what that comes to."""

    cuts: dict[str, LayerCut]
    level_asked: float  # percent of the parameters
    level_reached: float
    parameters: int
    bundles_removed: int
    why_not: str = ""  # where the level was not reached: what was possible, and why


def score_bundles(mode: Mode, bundles: Bundles, seed: int, strength: Scores) -> Scores:
    """A score per bundle; the lowest go first. `strength` is the bundles' mean absolute weight."""
    generator = np.random.default_rng(seed)
    if mode == "l1":
        place, size = _rank_in_group(strength, bundles.group)
        ranks: Scores = (place + 0.5) / size
        return ranks
    drawn = generator.random(bundles.count)
    if mode == "random":
        return drawn
    slope = _STEEPNESS * generator.choice([-1.0, 0.0, 1.0], p=[0.3, 0.3, 0.4])
    favour: Scores = np.exp(slope * bundles.depth[bundles.group])
    return drawn * favour


def order_removal(score: Scores, bundles: Bundles) -> Indices:
    """Bundles in the order they go; the last few of every group are not among them, they stay."""
    order = np.argsort(score, kind="stable")
    place, size = _rank_in_group(score, bundles.group)
    may_go = place < np.maximum(size - KEPT_AT_LEAST, 0)
    goes: Indices = order[may_go[order]]
    return goes


def make_plan(
    level: float, order: Indices, bundles: Bundles, layers: Mapping[str, Layer], count: ParameterCount
) -> Plan:
    """Remove bundles in order until the level is met as closely as it can be."""

    def mark_removed(number: int) -> npt.NDArray[np.bool_]:
        removed = np.zeros(bundles.count, dtype=bool)
        removed[order[:number]] = True
        return removed

    def share_of(number: int) -> float:
        return 100.0 * (1 - count.count_left(mark_removed(number)) / count.total)

    # the share grows with the number: the first that is enough, or the one before
    enough = min(bisect_left(range(len(order) + 1), level, key=share_of), len(order))
    number = min({enough, max(enough - 1, 0)}, key=lambda number: abs(share_of(number) - level))
    removed, reached = mark_removed(number), share_of(number)
    why_not = ""
    if abs(reached - level) > TOLERANCE_POINTS:
        why_not = f"{reached:.1f} % is the nearest: the next channel to go takes too many parameters with it"
        if number == len(order) or reached < level:
            why_not = (
                f"{reached:.1f} % is the most that can be removed: {KEPT_AT_LEAST} of each group's "
                f"channels stay ({len(np.unique(bundles.group))} groups), "
                "and so do the outputs and layers that cannot be cut"
            )
    gone = np.append(removed, False)  # the last entry answers for channels that stay
    cuts = {}
    for name, layer in layers.items():
        by_side = {side: np.flatnonzero(gone[bundles.owners[name, side]]) for side in layer.sides}
        found = {side: channels for side, channels in by_side.items() if len(channels)}
        if found:
            cuts[name] = LayerCut(found, layer.axis)
    return Plan(cuts, level, reached, count.count_left(removed), number, why_not)


def _rank_in_group(score: Scores, group: Indices) -> tuple[Indices, Indices]:
    """The place of each bundle among those of its group, the lowest score first, and their number."""
    order, sizes = np.lexsort((score, group)), np.bincount(group)
    place = np.empty(len(group), dtype=np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place, sizes[group]
