"""One figure in two runs: the change, its 95 % interval and a verdict that noise cannot fake.

Steps that are neighbours share the machine's mood (clock, cache, other people's jobs), so single steps
are not independent samples. They are cut into blocks in the order of time; each block is one sample.
Where both runs fed the same images in the same order, steps are paired first, and what the images
cost cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from detscope.analyze.stats import Floats

BLOCKS = 10
LEAST_STEPS = 6
LEAST_CHANGE = 0.01  # below one per cent nobody should act, whatever the statistics say
ROUNDS = 2000


@dataclass(frozen=True)
class Change:
    """Before, after, and what can be said about the difference."""

    before: float | None
    after: float | None
    difference: float | None = None
    low: float | None = None  # 95 % interval of the difference, in the figure's unit
    high: float | None = None
    chance: float | None = None  # of a difference this large between equal runs
    n: tuple[int, int] = (0, 0)
    paired: bool = False
    why: str = ""

    @property
    def relative(self) -> float | None:
        """The change as a share of before."""
        if self.difference is None or not self.before:
            return None
        return self.difference / self.before

    @property
    def seen(self) -> bool:
        """Whether the interval leaves no room for "no difference" and the change is worth naming."""
        if self.low is None or self.high is None or (self.low <= 0.0 <= self.high):
            return False
        return abs(self.relative or math.inf) >= LEAST_CHANGE

    def verdict(self, more: str = "slower", less: str = "faster") -> str:
        """The verdict in words."""
        if self.difference is None or self.low is None:
            return f"cannot tell: {self.why or 'no samples'}"
        if not self.seen:
            return "no difference seen"
        return more if self.difference > 0 else less

    def as_dict(self, more: str = "slower", less: str = "faster") -> dict[str, Any]:
        """Plain data for JSON and views."""
        interval = None if self.low is None else [self.low, self.high]
        relative = None
        if interval and self.before:
            relative = [end / self.before for end in interval if end is not None]
        return {
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "ci95": interval,
            "relative": self.relative,
            "relative_ci95": relative,
            "n": list(self.n),
            "paired": self.paired,
            "verdict": self.verdict(more, less),
        }


def change_of_steps(
    before: Mapping[int, float], after: Mapping[int, float], *, same_content: bool = False, seed: int = 0
) -> Change:
    """The change of a figure that has one value per step."""
    counts = (len(before), len(after))
    middle = [float(np.median(list(values.values()))) if values else None for values in (before, after)]
    if min(counts) < LEAST_STEPS:
        why = f"{min(counts)} steps; {LEAST_STEPS} are the least for an interval"
        difference = None if None in middle else middle[1] - middle[0]  # type: ignore[operator]
        return Change(middle[0], middle[1], difference, n=counts, why=why)
    shared = sorted(set(before) & set(after)) if same_content else []
    generator = np.random.default_rng(seed)
    if len(shared) >= LEAST_STEPS and len(shared) >= 0.8 * min(counts):
        blocks = _block_medians([after[step] - before[step] for step in shared])
        difference = float(np.mean(blocks))
        spread, freedom = _mean_of_picks(blocks, generator), len(blocks) - 1
        error = float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks))
    else:
        first, second = (_block_medians([v[s] for s in sorted(v)]) for v in (before, after))
        difference = float(np.mean(second) - np.mean(first))
        spread = _mean_of_picks(second, generator) - _mean_of_picks(first, generator)
        parts = [float(np.var(blocks, ddof=1)) / len(blocks) for blocks in (first, second)]
        error, freedom = math.sqrt(sum(parts)), min(len(first), len(second)) - 1
        shared = []
    wide = _student(0.975, freedom) / NormalDist().inv_cdf(0.975) * math.sqrt((freedom + 1) / freedom)
    low, high = np.percentile(spread, [2.5, 97.5])
    middle_of_spread = float(np.mean(spread))
    return Change(
        middle[0],
        middle[1],
        difference,
        difference + (float(low) - middle_of_spread) * wide,
        difference + (float(high) - middle_of_spread) * wide,
        _chance(difference, error, freedom),
        counts,
        bool(shared),
    )


def change_of_totals(before: float | None, after: float | None) -> Change:
    """The change of a figure that a run has once and that is exact, such as a peak of bytes."""
    if before is None or after is None:
        return Change(before, after, why="known in one of the runs only")
    difference = after - before
    return Change(before, after, difference, difference, difference, 0.0 if difference else 1.0, (1, 1))


def discoveries(chances: Sequence[float | None], rate: float = 0.05) -> list[bool]:
    """Which of many differences are real: at most 5 % of those named are false (Benjamini-Hochberg)."""
    known = sorted((chance, index) for index, chance in enumerate(chances) if chance is not None)
    kept = [False] * len(chances)
    last = max((rank for rank, (p, _) in enumerate(known, 1) if p <= rate * rank / len(known)), default=0)
    for _, index in known[:last]:
        kept[index] = True
    return kept


def _block_medians(values: Sequence[float]) -> Floats:
    blocks = min(BLOCKS, max(2, len(values) // 2))
    return np.asarray([np.median(part) for part in np.array_split(np.asarray(values, dtype=float), blocks)])


def _mean_of_picks(blocks: Floats, generator: np.random.Generator) -> Floats:
    picks = generator.integers(0, len(blocks), size=(ROUNDS, len(blocks)))
    means: Floats = blocks[picks].mean(axis=1)
    return means


def _student(probability: float, freedom: int) -> float:
    """Quantile of Student's t: a plain bootstrap of ten blocks would cover 89 %, not 95 %."""
    z = NormalDist().inv_cdf(probability)
    if freedom <= 2:
        return 4.303 if freedom == 2 else 12.706
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def _chance(difference: float, error: float, freedom: int) -> float:
    """Two-sided chance of a difference this large between equal runs."""
    if error == 0.0:
        return 0.0 if difference else 1.0
    ratio = abs(difference) / error
    # the normal deviate with the same tail as Student's t (Wallace's approximation)
    deviate = math.sqrt(freedom * math.log1p(ratio**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return 2 * (1 - NormalDist().cdf(deviate))
