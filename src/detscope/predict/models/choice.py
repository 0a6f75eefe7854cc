"""Which method answers, for a network like those that were measured (near) and for any other (far).

Both choices are made by cross-validation inside the training samples: near by leaving out pruning levels,
far by leaving out whole networks. The errors of the chosen methods on what was left out give the intervals.
A level that is left out leaves a wider gap than the one asked about later, so near intervals grow with the
distance to what was measured: a line through the errors of levels and of single rows that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, log
from typing import Protocol

import numpy as np
import numpy.typing as npt

from detscope.predict.models.older import collect_older_features
from detscope.predict.models.residual import solve_non_negative, square_distances
from detscope.predict.samples import Array, StepCase, StepSample

COVERAGE = 0.9
WIDEST = log(10)  # half of an interval where too little was measured to tell: a factor of ten
UNTESTED = log(2)  # at least, for other networks where only one was measured: assumed
_LEVEL_FOLDS = _ROW_FOLDS = 5
_USUALLY, _HARDLY = 0.9, 0.05
_CLEARLY = 2.0  # standard errors by which another method must beat the first to be taken


def conformal_width(errors: Array, groups: Sequence[str], coverage: float = COVERAGE) -> float:
    """The error that a share of left-out rows stays within; every group weighs the same.

    Infinite where there are too few rows to tell.
    """
    count = len(errors)
    if not count or ceil((count + 1) * coverage) > count:
        return inf
    names, sizes = np.unique(np.array(groups), return_counts=True)
    weight = dict(zip(names.tolist(), (1 / sizes / len(names)).tolist(), strict=True))
    order = np.argsort(errors)
    reached = np.cumsum([weight[groups[place]] for place in order])
    place = int(np.searchsorted(reached, coverage * (1 + 1 / count) - 1e-12))
    return float(errors[order[min(place, count - 1)]])


def conformal_width_across(errors: Array, groups: Sequence[str], coverage: float = COVERAGE) -> float:
    """The same for a group that was not seen: of few groups the worst one's own share counts.

    Nine in ten of the groups to come are held by the largest of nine; with fewer, that is the best there is.
    """
    pooled = conformal_width(errors, groups, coverage)
    names = np.array(groups)
    each = [float(np.quantile(errors[names == name], coverage)) for name in np.unique(names)]
    return max(pooled, *each) if ceil((len(each) + 1) * coverage) > len(each) else pooled


def conformal_line(
    errors: Array, distances: Array, groups: Sequence[str], coverage: float = COVERAGE
) -> tuple[float, float]:
    """The same where errors grow with a distance: half width at none, and what it grows by per distance.

    Errors are divided by the line that fits them best, which is then raised until it holds the share.
    """
    columns = np.column_stack([np.ones(len(errors)), distances])
    line = solve_non_negative(columns, errors)
    usual = np.maximum(columns @ line, 1e-12)
    raised = conformal_width(errors / usual, groups, coverage)
    if raised == inf:
        return WIDEST, 0.0
    return float(raised * line[0]), float(raised * line[1])


class Predictor(Protocol):
    """Anything fitted."""

    def predict(self, cases: Sequence[StepCase]) -> Array:
        """The target of each case."""


Fit = Callable[[Sequence[StepSample]], Predictor]


@dataclass(frozen=True)
class Reach:
    """How far from what was measured a case may lie to count as near, in standardised log features.

    Without places no whole network was measured: nothing is near, and nothing can be said to lie outside.
    """

    centre: Array
    scale: Array
    places: Array
    radius: float

    def measure_distances(self, cases: Sequence[StepCase]) -> Array:
        """Distance of each case to the nearest measured one."""
        if not self.places.size:
            return np.full(len(cases), np.inf)
        here = (_collect_places(cases) - self.centre) / self.scale
        return _measure_nearest(here, self.places)

    def find_outside(self, case: StepCase) -> list[int]:
        """Numbers of the older features in which a case exceeds everything that was measured."""
        if not self.places.size:
            return []
        here = ((_collect_places([case]) - self.centre) / self.scale)[0]
        beyond = (here > self.places.max(axis=0) + 1e-9) | (here < self.places.min(axis=0) - 1e-9)
        return np.flatnonzero(beyond).tolist()


NO_REACH = Reach(np.zeros(0), np.zeros(0), np.zeros((0, 0)), 0.0)


def _collect_places(cases: Sequence[StepCase]) -> Array:
    return np.log(collect_older_features(cases) + 1.0)


def _measure_nearest(here: Array, places: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(square_distances(here, places).min(axis=1), 0)))


def fit_reach(samples: Sequence[StepSample]) -> Reach:
    """As far as levels of one network usually lie apart, and not as far as another network."""
    raw = _collect_places([one.case for one in samples])
    centre, scale = raw.mean(axis=0), raw.std(axis=0) + 1e-9
    places = (raw - centre) / scale
    networks = np.array([one.network for one in samples])
    levels = np.array([one.level for one in samples])
    found = []
    for network in np.unique(networks):
        for level in np.unique(levels[networks == network]):
            asked = (networks == network) & (levels == level)
            kept = (networks == network) & (levels != level)
            if kept.any():
                found.append(_measure_nearest(places[asked], places[kept]))
    if not found:
        return Reach(centre, scale, places, 0.0)
    middle, radius = np.quantile(np.concatenate(found), (0.5, _USUALLY)).tolist()
    if len(np.unique(networks)) > 1:
        to_others = float(np.quantile(_distances_between(places, networks.tolist()), _HARDLY))
        radius = min(radius, max(middle, to_others))  # networks that are alike may be near each other
    return Reach(centre, scale, places, radius)


@dataclass(frozen=True)
class Estimate:
    """Predictions with 90 % intervals; `extrapolated` where the case is far from what was measured."""

    predicted: Array
    lower: Array
    upper: Array
    extrapolated: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TargetModel:
    """Two predictors, where each holds, and how wrong each was on what was left out."""

    near: Predictor
    far: Predictor
    near_name: str
    far_name: str
    near_width: float  # half of it, as a logarithm, as far away as still counts as near
    far_width: float
    reach: Reach
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    beside_width: float | None = None  # right beside a measured case; None: as `near_width`

    def predict(self, cases: Sequence[StepCase]) -> Array:
        """The target of each case."""
        return self.estimate_cases(cases).predicted

    def estimate_cases(self, cases: Sequence[StepCase]) -> Estimate:
        """Predictions, intervals, and which of them are extrapolated."""
        distances = self.reach.measure_distances(cases)
        far = distances > self.reach.radius
        predicted = np.empty(len(cases))
        for wanted, model in ((far, self.far), (~far, self.near)):
            places = np.flatnonzero(wanted)
            if len(places):
                predicted[places] = model.predict([cases[place] for place in places.tolist()])
        beside = self.near_width if self.beside_width is None else self.beside_width
        away = np.where(far, 1.0, distances / max(self.reach.radius, 1e-12))
        near_widths = beside + away * (self.near_width - beside)
        width = np.where(far, self.far_width, near_widths)  # half of it
        return Estimate(predicted, predicted * np.exp(-width), predicted * np.exp(width), far)


def fit_target(
    samples: Sequence[StepSample],
    target: str,
    methods: Mapping[str, Fit],
    trials: Mapping[str, Fit],
    fair: Sequence[int],
) -> TargetModel:
    """Choose among methods by cross-validation, fit the chosen on all samples, calibrate their intervals.

    For unseen networks the first method stays unless another is clearly better: three or four networks are
    few, and a method that wins by chance on them fails on the next. `trials` are cheaper fits to choose by,
    `fair` the places of samples that say something about unseen networks.
    """
    networks = [one.network for one in samples]
    levels = _level_folds(samples)
    several = len(set(networks)) > 1
    near = {name: leave_out(samples, levels, target, fit) for name, fit in trials.items()}
    far = (
        {name: leave_out(samples, networks, target, fit) for name, fit in trials.items()} if several else near
    )
    inside = _between_levels(samples)
    between = [networks[place] for place in inside]
    near_means = {name: average_groups(found[inside], between) for name, found in near.items()}
    near_name = min(near_means, key=lambda name: near_means[name])
    far_name = _clear_winner(far, networks, fair) if several else near_name
    fitted = {name: methods[name](samples) for name in {near_name, far_name}}
    reach = fit_reach(samples)
    rows = _row_folds(len(samples))
    beside, growth = conformal_line(
        np.concatenate([near[near_name][inside], leave_out(samples, rows, target, trials[near_name])]),
        np.concatenate(
            [_distances_between(reach.places, levels)[inside], _distances_between(reach.places, rows)]
        ),
        [*between, *networks],
    )
    far_width = conformal_width_across(far[far_name][fair], [networks[place] for place in fair])
    return TargetModel(
        fitted[near_name],
        fitted[far_name],
        near_name,
        far_name,
        beside + growth * reach.radius,
        min(far_width if several else max(far_width, UNTESTED), WIDEST),
        reach,
        {
            "seen networks, levels between": near_means,
            "unseen networks": {name: average_groups(found, networks) for name, found in far.items()},
        },
        beside,
    )


def _level_folds(samples: Sequence[StepSample]) -> list[str]:
    """Levels in turn; of one level alone, rows."""
    levels = sorted({one.level for one in samples})
    if len(levels) == 1:
        return _row_folds(len(samples))
    folds = {level: str(place % _LEVEL_FOLDS) for place, level in enumerate(levels)}
    return [folds[one.level] for one in samples]


def _row_folds(count: int) -> list[str]:
    """Each row into one of a few folds, by chance that is the same every time."""
    return [str(place % _ROW_FOLDS) for place in np.random.default_rng(0).permutation(count)]


def _distances_between(places: Array, groups: Sequence[str]) -> Array:
    """How far each row is from the nearest of another group."""
    names = np.array(groups)
    found = np.zeros(len(names))
    for name in np.unique(names):
        own = names == name
        found[own] = _measure_nearest(places[own], places[~own])
    return found


def _between_levels(samples: Sequence[StepSample]) -> list[int]:
    """Rows of levels that have others on both sides: near means between what was measured, not beyond it."""
    levels = sorted({one.level for one in samples})
    ends = {levels[0], levels[-1]} if len(levels) > 2 else set()
    return [place for place, one in enumerate(samples) if one.level not in ends]


def _clear_winner(errors: Mapping[str, Array], networks: Sequence[str], fair: Sequence[int]) -> str:
    names = np.array([networks[place] for place in fair])
    first, *others = errors
    means = {
        name: np.array([found[fair][names == network].mean() for network in np.unique(names)])
        for name, found in errors.items()
    }
    if len(means[first]) < 2:
        return first
    for name in sorted(others, key=lambda other: float(means[other].mean())):
        gains = means[first] - means[name]
        if gains.mean() > _CLEARLY * gains.std(ddof=1) / np.sqrt(len(gains)):
            return name
    return first


def average_groups(errors: Array, groups: Sequence[str]) -> float:
    """The mean of an error; every group, as a network, weighs the same."""
    names = np.array(groups)
    return float(np.mean([errors[names == name].mean() for name in np.unique(names)]))


def group_samples(samples: Sequence[StepSample]) -> list[str]:
    """What is left out to compare settings: networks; of one network, levels."""
    networks = [one.network for one in samples]
    return networks if len(set(networks)) > 1 else [str(one.level) for one in samples]


def leave_out(
    samples: Sequence[StepSample], groups: Sequence[str], target: str, fit: Fit, among: Iterable[str] = ()
) -> Array:
    """|log(predicted / measured)| of every sample by a model that has not seen its group.

    `among`: the groups that are asked about, all where none is named; others are without a number.
    """
    errors = np.full(len(samples), np.nan)
    for group in sorted(set(among) or set(groups)):
        asked = [place for place, name in enumerate(groups) if name == group]
        kept = [one for one, name in zip(samples, groups, strict=True) if name != group]
        # one group alone: nothing can be left out
        predicted = fit(kept or samples).predict([samples[place].case for place in asked])
        truth = np.array([samples[place].get_value(target) for place in asked], dtype=float)
        errors[asked] = np.abs(np.log(np.maximum(predicted, 1e-9) / truth))
    return errors
