"""One figure in two runs: the change, its 95 % interval and a verdict that noise cannot fake.

Steps that are neighbours share the machine's mood (clock, cache, other people's jobs), so single steps
are not independent samples. They are cut into blocks in the order of time; each block is one sample.
Where both runs fed the same images in the same order, steps are paired first, and what the images
cost cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np

from detscope.analyze.figure import Figure
from detscope.analyze.stats import Floats

BLOCKS = 10
LEAST_STEPS = 6
LEAST_CHANGE = 0.01  # below one per cent nobody should act, whatever the statistics say
ROUNDS = 2000

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


class Change(Figure, frozen=True, kw_only=True):
    """One figure before and after, and what can be said about the difference."""

    before: float | None  # median of the first run, in the figure's unit
    after: float | None  # median of the later run
    difference: float | None = None  # after less before
    ci95: Ends | None = None  # 95 % interval of the difference
    relative: float | None = None  # the difference as a share of before
    relative_ci95: Ends | None = None  # its 95 % interval
    chance: float | None = None  # of a difference this large between equal runs
    n: tuple[int, int] = (0, 0)  # steps of both runs
    paired: bool = False  # whether steps with the same images were compared with each other
    verdict: Verdict = UNTOLD  # a word only where the interval leaves no room for "no difference"
    why: str | None = None  # why it cannot be told

    @property
    def is_seen(self) -> bool:
        """Whether the difference can be told from noise and is worth naming."""
        return self.verdict not in (UNSEEN, UNTOLD)

    @property
    def verdict_text(self) -> str:
        """The verdict, with its reason where there is one."""
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


def name_change(name: str, change: Change) -> NamedChange:
    """A change with the name of what changed."""
    return NamedChange(name=name, **msgspec.structs.asdict(change))


def compare_steps(
    before: Mapping[int, float], after: Mapping[int, float], *, same_content: bool = False, seed: int = 0
) -> Change:
    """The change of a figure that has one value per step."""
    counts = (len(before), len(after))
    first, second = (
        float(np.median(list(values.values()))) if values else None for values in (before, after)
    )
    if min(counts) < LEAST_STEPS:
        why = f"{min(counts)} steps; {LEAST_STEPS} are the least for an interval"
        difference = None if first is None or second is None else second - first
        return _describe_change(first, second, difference, None, n=counts, why=why)
    shared = sorted(set(before) & set(after)) if same_content else []
    generator = np.random.default_rng(seed)
    if len(shared) >= LEAST_STEPS and len(shared) >= 0.8 * min(counts):
        blocks = _block_medians([after[step] - before[step] for step in shared])
        difference = float(np.mean(blocks))
        spread, freedom = _mean_of_picks(blocks, generator), len(blocks) - 1
        error = float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks))
    else:
        one, two = (_block_medians([v[s] for s in sorted(v)]) for v in (before, after))
        difference = float(np.mean(two) - np.mean(one))
        spread = _mean_of_picks(two, generator) - _mean_of_picks(one, generator)
        parts = [float(np.var(blocks, ddof=1)) / len(blocks) for blocks in (one, two)]
        error, freedom = math.sqrt(sum(parts)), min(len(one), len(two)) - 1
        shared = []
    wide = _student_quantile(0.975, freedom) / NormalDist().inv_cdf(0.975)
    wide *= math.sqrt((freedom + 1) / freedom)
    middle = float(np.mean(spread))
    low, high = (difference + (float(end) - middle) * wide for end in np.percentile(spread, [2.5, 97.5]))
    chance = _chance_of(difference, error, freedom)
    return _describe_change(
        first, second, difference, (low, high), chance=chance, n=counts, paired=bool(shared)
    )


def compare_totals(before: float | None, after: float | None, words: Words = ("slower", "faster")) -> Change:
    """The change of a figure that a run has once and that is exact, such as a peak of bytes."""
    if before is None or after is None:
        return Change(before=before, after=after, why="known in one of the runs only")
    difference = after - before
    chance = 0.0 if difference else 1.0
    return _describe_change(
        before, after, difference, (difference, difference), words, chance=chance, n=(1, 1)
    )


def _describe_change(
    before: float | None,
    after: float | None,
    difference: float | None,
    ends: Ends | None,
    words: Words = ("slower", "faster"),
    *,
    chance: float | None = None,
    n: tuple[int, int],
    paired: bool = False,
    why: str | None = None,
) -> Change:
    relative = difference / before if difference is not None and before else None
    verdict = UNTOLD
    if difference is not None and ends is not None:
        zero_inside = ends[0] <= 0.0 <= ends[1]
        small = abs(relative or math.inf) < LEAST_CHANGE
        verdict = UNSEEN if zero_inside or small else words[0] if difference > 0 else words[1]
    return Change(
        before=before,
        after=after,
        difference=difference,
        ci95=ends,
        relative=relative,
        relative_ci95=(ends[0] / before, ends[1] / before) if ends and before else None,
        chance=chance,
        n=n,
        paired=paired,
        verdict=verdict,
        why=why,
    )


def find_discoveries(chances: Sequence[float | None], rate: float = 0.05) -> list[bool]:
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


def _student_quantile(probability: float, freedom: int) -> float:
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


def _chance_of(difference: float, error: float, freedom: int) -> float:
    """Two-sided chance of a difference this large between equal runs."""
    if error == 0.0:
        return 0.0 if difference else 1.0
    ratio = abs(difference) / error
    # the normal deviate with the same tail as Student's t (Wallace's approximation)
    deviate = math.sqrt(freedom * math.log1p(ratio**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return 2 * (1 - NormalDist().cdf(deviate))
