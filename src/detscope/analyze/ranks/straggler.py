"""Who holds the other ranks up, and why: its data, what is in its images, or the rank itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.stats import Interval, bootstrap_interval, percent

STRAGGLER_SHARE = 0.1  # of a step: work that does not certainly differ by more counts as even
CONTENT_RATIO = 1.1  # so much more in a rank's images explains its longer work
_MODEL_PHASES = ("forward", "backward")


class RankPhase(Figure, frozen=True, kw_only=True):
    """A phase of one rank's step; phases add up to its median."""

    name: str  # of the phase
    ms: float | None  # of the median step
    exposed_ms: float | None  # of it: waiting for collectives, per step; None where none were recorded

    @property
    def own_ms(self) -> float | None:
        """The phase without the time in which the rank waited for collectives."""
        return None if self.ms is None else max(0.0, self.ms - (self.exposed_ms or 0.0))


class RankFigures(Figure, frozen=True, kw_only=True):
    """One rank: its step, its work, its collectives, what was in its images."""

    rank: int  # from 0
    host: str | None = None  # name of the machine
    device: str | None = None  # that it ran on
    status: str | None = None  # ok, partial or failed
    reason: str | None = None  # why it is not ok
    run: str | None = None  # its own run, below this one
    last_loss: float | None = None  # of its own images
    steps: int  # that every rank recorded
    step_ms: float | None  # median
    ci95: Interval | None  # of the median
    mean_step_ms: float | None  # of the common steps
    phases: tuple[RankPhase, ...]
    work_ms: float | None  # mean step without exposed communication
    communication_ms: float | None = None  # per step; None where no collective was recorded
    exposed_ms: float | None = None  # of it, what nothing hid
    hidden_share: float | None = None  # of the communication
    wait_for_others_ms: float | None = None  # of the exposed, before the last rank came
    images_per_step: float | None = None  # mean
    images_per_s: float | None = None  # its own images over its own median step
    boxes_per_step: float | None = None  # mean, annotated
    pixels_per_step: float | None = None  # mean
    proposals_per_step: float | None = None  # mean

    def known_content(self) -> dict[str, float]:
        """What makes a step's images costly, as far as it is known."""
        found = {
            "pixels": self.pixels_per_step,
            "boxes": self.boxes_per_step,
            "proposals": self.proposals_per_step,
        }
        return {what: value for what, value in found.items() if value is not None}


class PhaseExcess(Figure, frozen=True, kw_only=True):
    """By how much a phase of the slowest rank exceeds the others' mean, without waiting."""

    name: str  # of the phase
    ms: float  # per step


class Straggler(Figure, frozen=True, kw_only=True):
    """The rank whose work takes longest, and the reason."""

    rank: int | None  # None: all are even, or it cannot be told
    reason: str | None = None  # the phase, or "content"
    excess_ms: float | None = None  # of its work over the mean of the others
    excess_ci95: Interval | None = None  # 95 % interval of the excess
    share: float | None = None  # of a step
    slowest_in: float | None = None  # share of steps in which its work took longest
    lost_ms: float | None = None  # per step: what perfectly even work would save
    phase_excess: tuple[PhaseExcess, ...] = ()
    why: str  # in words


class RankTotal(Figure, frozen=True, kw_only=True):
    """How much one rank had in all common steps."""

    rank: int  # from 0
    total: int  # boxes or pixels


class ContentBalance(Figure, frozen=True, kw_only=True):
    """How far the fullest rank of a step is above the mean of its ranks."""

    above_mean: float | None  # relative, mean over the steps
    ranks: tuple[RankTotal, ...] = ()
    n: int = 0  # steps
    why: str | None = None  # why it is not known


class Imbalance(Figure, frozen=True, kw_only=True):
    """What is in the images, rank by rank."""

    boxes: ContentBalance
    pixels: ContentBalance


def find_straggler(rows: Sequence[RankFigures], work: Mapping[int, Mapping[int, float]]) -> Straggler:
    """The rank whose work takes longest; `work` is that of every rank in every step, in ms."""
    known = [(row.work_ms, row) for row in rows if row.work_ms is not None]
    if len(known) < 2:
        return Straggler(rank=None, why="cannot tell: fewer than two ranks have common steps")
    longest_ms, slowest = max(known, key=lambda pair: pair[0])
    others = [row for _, row in known if row is not slowest]
    excess_ms = longest_ms - sum(row.work_ms or 0.0 for row in others) / len(others)
    step_ms = max(row.mean_step_ms or 0.0 for _, row in known)
    interval = _excess_interval(work, slowest.rank)
    certain_ms = excess_ms if interval is None else interval.low
    even = certain_ms < STRAGGLER_SHARE * step_ms
    reason, why = None, "ranks are even: no one holds the others up"
    phases: dict[str, float] = {}
    if not even:
        reason, evidence, phases = _find_reason(slowest, others)
        held = f"rank {slowest.rank} holds the others up by {excess_ms:.1f} ms"
        why = f"{held} ({percent(excess_ms / step_ms)}): {evidence}"
    most = [max(own, key=own.__getitem__) for own in work.values()]
    lost_ms = [max(own.values()) - sum(own.values()) / len(own) for own in work.values()]
    return Straggler(
        rank=None if even else slowest.rank,
        reason=reason,
        excess_ms=excess_ms,
        excess_ci95=interval,
        share=excess_ms / step_ms,
        slowest_in=most.count(slowest.rank) / len(most) if most else None,
        lost_ms=sum(lost_ms) / len(lost_ms) if lost_ms else None,
        phase_excess=tuple(PhaseExcess(name=name, ms=ms) for name, ms in phases.items()),
        why=why,
    )


def _find_reason(slowest: RankFigures, others: Sequence[RankFigures]) -> tuple[str, str, dict[str, float]]:
    """The phase that grew most; where the model runs, whether the images explain it."""
    phases = {}
    for number, phase in enumerate(slowest.phases):
        usual = [own for row in others if (own := row.phases[number].own_ms) is not None]
        if phase.own_ms is not None and usual:
            phases[phase.name] = phase.own_ms - sum(usual) / len(usual)
    largest = max(phases, key=phases.__getitem__)
    grown = f"{largest} takes {phases[largest]:.1f} ms more"
    if largest not in _MODEL_PHASES:
        return largest, grown, phases
    ratios = _compare_content(slowest, others)
    most = max(ratios, key=ratios.__getitem__, default=None)
    if most is not None and ratios[most] >= CONTENT_RATIO:
        return "content", f"{grown}, its images have {ratios[most]:.2f} x the {most}", phases
    alike = "with like content" if ratios else "content unknown"
    return largest, f"{grown} {alike}: a slower or busier processor or device", phases


def _compare_content(slowest: RankFigures, others: Sequence[RankFigures]) -> dict[str, float]:
    """How many times as much a rank had per step as the mean of the others."""
    found = {}
    for what, mine in slowest.known_content().items():
        known = [row.known_content()[what] for row in others if what in row.known_content()]
        if known and sum(known) > 0:
            found[what] = mine / (sum(known) / len(known))
    return found


def _excess_interval(work: Mapping[int, Mapping[int, float]], rank: int) -> Interval | None:
    """By how much a rank's work exceeds the others' in the mean of steps; None where they are too few."""
    excess = [
        own[rank] - sum(other for number, other in own.items() if number != rank) / (len(own) - 1)
        for own in work.values()
        if rank in own and len(own) > 1
    ]
    return bootstrap_interval(np.asarray(excess), lambda values: float(values.mean()))


def measure_imbalance(content: pl.DataFrame, chosen: Sequence[int]) -> Imbalance:
    """Boxes and pixels by rank."""
    rows = content.filter(pl.col("step").is_in(list(chosen)))
    return Imbalance(boxes=_balance_of(rows, "boxes"), pixels=_balance_of(rows, "pixels"))


def _balance_of(rows: pl.DataFrame, what: str) -> ContentBalance:
    own = rows.filter(pl.col(what).is_not_null())
    per_step = own.group_by("step").agg(pl.col(what).max().alias("most"), pl.col(what).mean().alias("mean"))
    per_step = per_step.filter(pl.col("mean") > 0)
    if per_step.height == 0:
        return ContentBalance(above_mean=None, why=f"{what} were not recorded")
    by_rank = own.group_by("rank").agg(pl.col(what).sum()).sort("rank")
    return ContentBalance(
        above_mean=per_step.select((pl.col("most") / pl.col("mean") - 1).mean()).item(),
        ranks=tuple(RankTotal(rank=rank, total=int(value)) for rank, value in by_rank.iter_rows()),
        n=per_step.height,
    )
