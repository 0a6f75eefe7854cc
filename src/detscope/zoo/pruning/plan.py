"""Which channels go: one ranking of all bundles, cut where the level is reached.

- `random`: every bundle has the same chance; layers lose about the same share.
- `l1`: in every group the bundles of the smallest mean absolute weight go first; groups lose the same share.
- `weighted`: random, with layers favoured by depth: the seed decides whether early layers are spared, late
  layers, or none. Networks of equal size and unlike shapes, which a cost model wants to see.

The ranking depends on the seed and not on the level: a network at 50 % is one at 30 % with more removed.

The dependency graph says which channels of which layers belong together; here they become bundles: the
smallest sets of channels that can be removed and leave a network that runs. Numbers only, no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detscope.zoo.pruning.layers import ChannelAxis, Indices, LayerCut, Side

KEPT_AT_LEAST = 2  # bundles of a group: with one, a group norm has nothing left to normalise over
FIXED = -1

Mode = Literal["random", "l1", "weighted"]
MODES: tuple[Mode, ...] = ("random", "l1", "weighted")
TOLERANCE_POINTS = 1.0
_STEEPNESS = 2.0  # of `weighted`: the favoured end is exp(2), about 7 times, less likely to lose a channel

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Member:
    """One side of a layer in a group: its channel `channels[k]` goes when the group's `roots[k]` does."""

    layer: str
    side: str
    channels: Indices
    roots: Indices


@dataclass(frozen=True)
class Layer:
    """A layer that can be cut: its sides and the shapes of the tensors they lie in."""

    sides: Mapping[str, Side]
    shapes: Mapping[str, tuple[int, ...]]
    counted: frozenset[str]  # tensors that are parameters, not buffers
    axis: int | None = None  # of a lone parameter


@dataclass(frozen=True)
class Bundles:
    """Every channel's bundle: `owners[layer, side][channel]`, FIXED where it has to stay."""

    owners: Mapping[tuple[str, str], Indices]
    group: Indices  # of each bundle; they are numbered in the order of the network
    count: int
    depth: npt.NDArray[np.float64]  # of each group: 0 for the first layers, 1 for the last


def bundle_channels(layers: Mapping[str, Layer], groups: Sequence[Sequence[Member]]) -> Bundles:
    """Join what has to go together: across layers, and across the groups of a grouped convolution."""
    sizes = [1 + max(int(member.roots.max()) for member in group) for group in groups]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    total = int(starts[-1])
    joined: list[tuple[int, int]] = []
    places = {
        (name, side): np.full(content.channels, FIXED, dtype=np.int64)
        for name, layer in layers.items()
        for side, content in layer.sides.items()
    }
    frozen = np.zeros(total, dtype=bool)
    for start, group in zip(starts.tolist(), groups, strict=False):
        for member in group:
            owned = places[member.layer, member.side]
            for channel, item in zip(member.channels.tolist(), (member.roots + start).tolist(), strict=True):
                if owned[channel] == FIXED:
                    owned[channel] = item
                else:
                    joined.append((int(owned[channel]), item))
    for (name, side), owned in places.items():
        equal = layers[name].sides[side].groups
        # of a grouped layer the same channel of every group goes, or none
        for column in owned.reshape(equal, -1).T.tolist() if equal > 1 else ():
            items = [item for item in column if item >= 0]
            joined += [(items[0], item) for item in items[1:]]
            if len(items) < equal:
                frozen[items] = True
    labels = _label_sets(total, joined)
    stuck = np.unique(labels[frozen])
    used = np.unique(np.concatenate([owned[owned >= 0] for owned in places.values()] or [starts[:0]]))
    free = np.setdiff1d(np.unique(labels[used]), stuck)
    number = np.full(total + 1, FIXED, dtype=np.int64)  # the last entry answers for FIXED
    number[free] = np.arange(len(free))
    by_channel = np.append(number[labels], FIXED)
    group_of = np.searchsorted(starts, free, side="right") - 1
    depth = np.linspace(0, 1, len(groups)) if len(groups) > 1 else np.zeros(len(groups))
    owners = {place: by_channel[owned] for place, owned in places.items()}
    return Bundles(owners, group_of.astype(np.int64), len(free), depth)


def _label_sets(count: int, joined: Sequence[tuple[int, int]]) -> Indices:
    """The least item of each item's set, where joining is transitive."""
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    pairs = np.array(joined, dtype=np.int64).reshape(-1, 2)
    links = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, number = connected_components(links, directed=False)
    _, firsts = np.unique(number, return_index=True)
    labels: Indices = firsts[number]
    return labels


class ParameterCount:
    """The number of parameters left, as a function of the bundles removed; nothing is pruned for it."""

    def __init__(self, layers: Mapping[str, Layer], bundles: Bundles, total: int) -> None:
        self.total = total
        self._tensors: list[tuple[int, list[Indices]]] = []
        for name, layer in layers.items():
            for tensor in layer.counted:
                axes = [
                    axis_owners(bundles.owners[name, side], axis)
                    for side, content in layer.sides.items()
                    for axis in content.axes
                    if axis.tensor == tensor
                ]
                shape = layer.shapes[tensor]
                rest = int(np.prod(shape)) // int(np.prod([len(owners) for owners in axes]))
                self._tensors.append((rest, axes))
        self._fixed = total - sum(self._list_sizes(np.zeros(bundles.count + 1, dtype=bool)))

    def count_left(self, removed: npt.NDArray[np.bool_]) -> int:
        """Parameters left when these bundles are gone."""
        return self._fixed + sum(self._list_sizes(np.append(removed, False)))

    def _list_sizes(self, removed: npt.NDArray[np.bool_]) -> list[int]:
        return [
            rest * int(np.prod([int((~removed[owners]).sum()) for owners in axes], dtype=np.int64))
            for rest, axes in self._tensors
        ]


def axis_owners(owners: Indices, axis: ChannelAxis) -> Indices:
    """The bundle of each entry along a tensor's dimension."""
    along = np.full(axis.entry_count, FIXED, dtype=np.int64)
    positions = axis.find_positions(np.arange(len(owners), dtype=np.int64))
    along[positions] = np.broadcast_to(owners, positions.shape)
    return along


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
