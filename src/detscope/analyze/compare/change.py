"""One figure before and after: the change of what is printed, its 95 % interval, and a verdict that follows.

Figures are compared as ratios, so that a change never falls below -100 %. What makes an interval wide has
two parts. Steps of one process share the machine's mood, so they are drawn again and again in blocks of
neighbours (a bootstrap); of runs with the same images the same steps are drawn. And processes
differ, by where memory lies and what else runs: no step of one process knows of that, so the variation
between processes (`variation.py`) is added, or measured where a side has several runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from detscope.analyze.compare.student import chance_beyond, ratio_for
from detscope.analyze.figure import Figure
from detscope.analyze.stats import Floats

BLOCKS = 10
DRAWS = 300
MOST_DRAWN = 300  # steps; of more the blocks themselves are long enough to be samples
LONG_BLOCKS = 25
LEAST_STEPS = 6
RISK = 0.05  # of an interval that misses
DIGITS = 5  # of a figure as it is printed; changes are computed from these
_STEP = 1000  # ends of intervals are printed in tenths of a per cent

Verdict = Literal[
    "slower",
    "faster",
    "more",
    "less",
    "better",
    "worse",
    "new",
    "gone",
    "no difference seen",
    "cannot tell",
]
UNSEEN: Verdict = "no difference seen"
UNTOLD: Verdict = "cannot tell"
Words = tuple[Verdict, Verdict]  # of a figure that rose, and of one that fell
Ends = tuple[float, float]
Places = NDArray[np.int64]
TIME_WORDS: Words = ("slower", "faster")


class Change(Figure, frozen=True, kw_only=True):
    """One figure before and after, and what can be said about the difference."""

    before: float | None  # of the first side, to five digits; of several runs the geometric mean
    after: float | None  # of the later side
    difference: float | None = None  # after less before
    ci95: Ends | None = None  # 95 % interval of the difference
    relative: float | None = None  # after / before - 1, of the figures as they stand here
    relative_ci95: Ends | None = None  # its 95 % interval, rounded outwards to 0.1 %
    chance: float | None = None  # of a difference this large between equal runs
    corrected_chance: float | None = None  # the same after correction for all rows (Holm)
    rows: int = 1  # that it was corrected for
    resolution: float | None = None  # the smallest change that these runs could have told
    n: tuple[int, int] = (0, 0)  # steps of both sides
    runs: tuple[int, int] = (1, 1)  # processes of both sides
    paired: bool = False  # whether steps with the same images were compared with each other
    exact: bool = False  # a count: no step or process makes it vary
    verdict: Verdict = UNTOLD  # a word only where the interval leaves no room for "no difference"
    why: str | None = None  # why it cannot be told

    @property
    def is_seen(self) -> bool:
        """Whether the difference can be told from noise."""
        return self.verdict not in (UNSEEN, UNTOLD)

    @property
    def is_undone(self) -> bool:
        """Whether its own interval leaves 0 out, and the correction for many rows takes that back."""
        return (
            self.verdict == UNSEEN and self.relative_ci95 is not None and _excludes_zero(self.relative_ci95)
        )

    @property
    def verdict_text(self) -> str:
        """The verdict, with its reason where there is one."""
        if self.is_undone:
            return f"{self.verdict}, corrected for {self.rows} rows"
        return f"{self.verdict}: {self.why}" if self.why else self.verdict


class NamedChange(Change, frozen=True, kw_only=True):
    """The change of a phase, a stage, a kind of memory or a measure of accuracy."""

    name: str  # of what changed

    @property
    def row_label(self) -> str:
        """What a row of a table begins with."""
        return self.name


class ModuleChange(Change, frozen=True, kw_only=True):
    """The change of a module's own time."""

    path: str  # of the module in the later run; in the first one where it is gone
    was: str | None = None  # its path in the first run, where it was renamed

    @property
    def row_label(self) -> str:
        """What a row of a table begins with."""
        return f"{self.path} (was {self.was})" if self.was else self.path


Row = TypeVar("Row", bound=Change)


def name_change(name: str, change: Change) -> NamedChange:
    """A change with the name of what changed."""
    return NamedChange(name=name, **msgspec.structs.asdict(change))


@dataclass(frozen=True)
class Sample:
    """A figure of one run: its value, and how to measure it in some of the run's steps."""

    value: float
    steps: tuple[int, ...] = ()  # in the order of time
    measure: Callable[[Places], Floats] | None = None  # in rows of places of steps; None: a run has it once


@dataclass(frozen=True)
class RatioSpread:
    """A variance of a ratio's logarithm, and how well it is known."""

    variance: float
    freedom: float
    lean: float = 0.0  # how far the later figure may be too high (negative: the first) for another reason


def sample_median(times: Mapping[int, float]) -> Sample | None:
    """The median of one value per step; None where there is none."""
    return sample_percentile(times, 50) if times else None


def sample_percentile(times: Mapping[int, float], percentile: float) -> Sample:
    """A percentile of one value per step."""
    steps = tuple(sorted(times))
    values = np.asarray([times[step] for step in steps], dtype=float)
    return Sample(
        float(np.percentile(values, percentile)),
        steps,
        lambda places: np.percentile(values[places], percentile, axis=1),
    )


def compare_steps(
    before: Mapping[int, float], after: Mapping[int, float], *, same_content: bool = False
) -> Change:
    """The change of a figure that has one value per step, as far as steps can tell."""
    one, two = sample_median(before), sample_median(after)
    return compare_samples(
        [one] if one else [], [two] if two else [], RatioSpread(0.0, 1.0), same_content=same_content
    )


def compare_samples(
    before: Sequence[Sample],
    after: Sequence[Sample],
    between: RatioSpread | None,
    *,
    same_content: bool = False,
    words: Words = TIME_WORDS,
    risk: float = RISK,
    unjudged: str | None = None,
) -> Change:
    """The change of a figure; `between` is how processes differ, None of what is exact.

    Sides of several runs tell themselves how processes differ; rounds are then compared with each other, as
    the i-th runs of both sides were made one after the other. `risk` is below 5 % where one looked often.
    `unjudged` is why nobody should judge it.
    """
    first, second = (_print_value(side) for side in (before, after))
    counts = (sum(len(one.steps) for one in before), sum(len(one.steps) for one in after))
    known = Change(before=first, after=second, n=counts, runs=(len(before), len(after)))
    if first is None or second is None:
        return msgspec.structs.replace(known, why="known in one of the runs only")
    difference = second - first
    relative = second / first - 1 if first > 0 else None
    known = msgspec.structs.replace(known, difference=difference, relative=relative)
    if unjudged:
        return msgspec.structs.replace(known, why=unjudged)
    repeated = min(len(before), len(after)) > 1
    if between is None and not (repeated and _varies(before, after)):
        return _judge_exact(known, words)
    if min(first, second) <= 0:
        if first == second:
            return msgspec.structs.replace(known, verdict=UNSEEN)
        return msgspec.structs.replace(known, why="a figure of 0 has no ratio")
    if repeated:
        spread = _spread_of_rounds(before, after)
    else:
        inside = _spread_inside(before[0], after[0], same_content)
        if inside is None:
            steps = min(counts)
            why = f"{steps} steps; {LEAST_STEPS} are the least for an interval"
            return msgspec.structs.replace(known, why=why)
        known = msgspec.structs.replace(known, paired=inside[1])
        spread = _add_spreads([inside[0], *([between] if between else ())])
    return _judge_ratio(known, spread, words, risk)


def _judge_ratio(known: Change, spread: RatioSpread, words: Words, risk: float) -> Change:
    """The verdict of a ratio whose logarithm has this spread."""
    assert known.before and known.after and known.relative is not None
    error, logarithm = math.sqrt(spread.variance), math.log(known.after / known.before)
    reach = min(300.0, ratio_for(risk, spread.freedom) * error)
    low, high = logarithm - reach - max(0.0, spread.lean), logarithm + reach - min(0.0, spread.lean)
    ends = (
        math.floor(_STEP * math.expm1(low) + 1e-9) / _STEP,
        math.ceil(_STEP * math.expm1(min(700.0, high)) - 1e-9) / _STEP,
    )
    explained = max(0.0, math.copysign(1.0, logarithm) * spread.lean)
    distance = max(0.0, abs(logarithm) - explained)
    ratio = distance / error if error else math.inf if distance else 0.0
    chance = min(1.0, chance_beyond(ratio, spread.freedom) * RISK / risk)
    seen = _excludes_zero(ends)
    return msgspec.structs.replace(
        known,
        ci95=(known.before * ends[0], known.before * ends[1]),
        relative_ci95=ends,
        chance=chance,
        corrected_chance=chance,
        resolution=math.expm1(reach + abs(spread.lean)),
        verdict=words[0 if known.relative > 0 else 1] if seen else UNSEEN,
    )


def _judge_exact(known: Change, words: Words) -> Change:
    """A count is what it is; a change that prints as 0.0 % is none."""
    shown = known.relative if known.relative is not None else known.difference or 0.0
    verdict: Verdict = UNSEEN if abs(shown) < 0.5 / _STEP else words[0 if shown > 0 else 1]
    return msgspec.structs.replace(known, exact=True, verdict=verdict)


def _excludes_zero(ends: Ends) -> bool:
    return ends[0] > 0 or ends[1] < 0


def round_figure(value: float) -> float:
    """A figure as it is printed."""
    return float(f"{value:.{DIGITS}g}")


def _print_value(side: Sequence[Sample]) -> float | None:
    """Of several runs the geometric mean: the ratio of two of them is the mean ratio of their rounds."""
    values = [one.value for one in side]
    if not values:
        return None
    if len(values) == 1 or min(values) <= 0:
        return round_figure(float(np.median(values)))
    return round_figure(math.exp(math.fsum(map(math.log, values)) / len(values)))


def _varies(before: Sequence[Sample], after: Sequence[Sample]) -> bool:
    return any(len({one.value for one in side}) > 1 for side in (before, after))


def _spread_of_rounds(before: Sequence[Sample], after: Sequence[Sample]) -> RatioSpread:
    """How uncertain the mean ratio of several processes is, by the processes themselves."""
    one, two = (np.log([max(sample.value, 1e-300) for sample in side]) for side in (before, after))
    if len(one) == len(two):
        return RatioSpread(float(np.var(two - one, ddof=1)) / len(one), len(one) - 1.0)
    return _add_spreads([RatioSpread(float(np.var(x, ddof=1)) / len(x), len(x) - 1.0) for x in (one, two)])


def _spread_inside(before: Sample, after: Sample, same_content: bool) -> tuple[RatioSpread, bool] | None:
    """How uncertain the ratio is by the steps of both runs, and whether steps were paired."""
    if before.measure is None or after.measure is None:
        return RatioSpread(0.0, 1.0), False  # a run has it once: what is between processes is all one knows
    if min(len(before.steps), len(after.steps)) < LEAST_STEPS:
        return None
    shared = sorted(set(before.steps) & set(after.steps)) if same_content else []
    if len(shared) >= LEAST_STEPS and len(shared) >= 0.8 * min(len(before.steps), len(after.steps)):
        picks = _pick_blocks(len(shared))
        logs = [
            _measure_logs(one, np.searchsorted(one.steps, shared)[picks.places]) for one in (before, after)
        ]
        return picks.spread_of(logs[1] - logs[0]), True
    return _add_spreads(
        [RatioSpread(measure_inside(one), _pick_blocks(len(one.steps)).freedom) for one in (before, after)]
    ), False


def measure_inside(sample: Sample) -> float:
    """The variance of a figure's logarithm, as far as the steps of its run know it."""
    if sample.measure is None or len(sample.steps) < LEAST_STEPS or sample.value <= 0:
        return 0.0
    picks = _pick_blocks(len(sample.steps))
    return picks.spread_of(_measure_logs(sample, picks.places)).variance


def _measure_logs(sample: Sample, places: Places) -> Floats:
    assert sample.measure is not None
    floor = sample.value * 1e-3  # a pick in which nothing happened is far away, not infinitely
    logs: Floats = np.log(np.maximum(sample.measure(places), floor))
    return logs


@dataclass(frozen=True)
class _Picks:
    """Places of steps, drawn in blocks of neighbours, because neighbours share the machine's mood."""

    places: Places  # one row per draw, or per block
    freedom: float  # blocks less one
    is_mean: bool  # rows are the blocks themselves, of which the figure is as good as the mean

    def spread_of(self, logs: Floats) -> RatioSpread:
        """The spread of the figure whose logarithms were measured in every row."""
        count = self.freedom + 1
        if self.is_mean:
            return RatioSpread(float(np.var(logs, ddof=1)) / count, self.freedom)
        return RatioSpread(float(np.var(logs, ddof=1)) * count / self.freedom, self.freedom)


@cache
def _pick_blocks(steps: int) -> _Picks:
    """Draws of as many steps as there are, in blocks; of very many steps the blocks themselves."""
    if steps > MOST_DRAWN:
        length = steps // LONG_BLOCKS
        places = np.arange(LONG_BLOCKS * length).reshape(LONG_BLOCKS, length)
        return _Picks(places, LONG_BLOCKS - 1.0, True)
    length = max(math.ceil(steps ** (1 / 3)), steps // BLOCKS)
    count = math.ceil(steps / length)
    begins = np.random.default_rng(0).integers(0, steps, size=(DRAWS, count, 1))
    places = ((begins + np.arange(length)) % steps).reshape(DRAWS, count * length)[:, :steps]
    return _Picks(places, max(1.0, steps / length - 1.0), False)


def _add_spreads(parts: Sequence[RatioSpread]) -> RatioSpread:
    """The spread of a sum, its freedom by Welch and Satterthwaite."""
    variance = math.fsum(part.variance for part in parts)
    weights = math.fsum(part.variance**2 / part.freedom for part in parts)
    freedom = variance**2 / weights if weights > 0 else math.fsum(part.freedom for part in parts)
    return RatioSpread(variance, freedom, math.fsum(part.lean for part in parts))


@dataclass(frozen=True)
class JudgedTables:
    """Rows that are judged together; of equal runs at most 5 % have any of them named.

    Holm's correction holds in each table, and tables share the risk equally: in one table together a few
    stages would be judged as strictly as a thousand modules.
    """

    tables: int
    rows: int

    @classmethod
    def of_tables(cls, *tables: Sequence[Change]) -> JudgedTables:
        """The family of all rows that have an interval."""
        counts = [sum(row.chance is not None for row in table) for table in tables]
        return cls(max(1, sum(count > 0 for count in counts)), sum(counts))

    def correct_rows(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of one table with verdicts that hold for all tables at once."""
        order = sorted(
            (index for index, row in enumerate(rows) if row.chance is not None),
            key=lambda index: rows[index].chance or 0.0,
        )
        corrected, largest = [*rows], 0.0
        for rank, index in enumerate(order):
            row = rows[index]
            largest = max(largest, min(1.0, (row.chance or 0.0) * (len(order) - rank) * self.tables))
            verdict = row.verdict if largest <= RISK else UNSEEN
            corrected[index] = msgspec.structs.replace(
                row, corrected_chance=largest, rows=self.rows, verdict=verdict
            )
        return corrected
