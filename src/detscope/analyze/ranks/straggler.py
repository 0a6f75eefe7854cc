"""Who holds the other ranks up, and why: its data, what is in its images, or the rank itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.stats import Interval, bootstrap_interval, percent

STRAGGLER_SHARE = 0.1  # of a step: work that does not certainly differ by more counts as even
CONTENT_RATIO = 1.1  # so much more in a rank's images explains its longer work
CONTENTS = ("pixels", "boxes", "proposals")
_MODEL_PHASES = ("forward", "backward")


def straggler(rows: Sequence[Mapping[str, Any]], work: Mapping[int, Mapping[int, float]]) -> dict[str, Any]:
    """The rank whose work takes longest, and the reason; rank None where all are even."""
    known = [row for row in rows if row.get("work_ms") is not None]
    if len(known) < 2:
        return {"rank": None, "reason": None, "why": "cannot tell: fewer than two ranks have common steps"}
    slowest = max(known, key=lambda row: row["work_ms"])
    others = [row for row in known if row is not slowest]
    usual_ms = sum(row["work_ms"] for row in others) / len(others)
    excess_ms = slowest["work_ms"] - usual_ms
    step_ms = max(row["mean_step_ms"] for row in known)
    found: dict[str, Any] = {
        "excess_ms": excess_ms,
        "share": excess_ms / step_ms,
        "work_ms": {str(row["rank"]): row["work_ms"] for row in known},
        "slowest_in": _slowest_in(work, slowest["rank"]),
        "lost_ms": _lost_ms(work),
    }
    interval = _excess_interval(work, slowest["rank"])
    found["excess_ci95"] = [interval.low, interval.high] if interval else None
    certain_ms = excess_ms if interval is None else interval.low
    if certain_ms < STRAGGLER_SHARE * step_ms:
        return {"rank": None, "reason": None, **found, "why": "ranks are even: no one holds the others up"}
    reason, evidence, phases = _reason(slowest, others)
    held = (
        f"rank {slowest['rank']} holds the others up by {excess_ms:.1f} ms ({percent(excess_ms / step_ms)})"
    )
    return {
        "rank": slowest["rank"],
        "reason": reason,
        **found,
        "phase_excess_ms": phases,
        "why": f"{held}: {evidence}",
    }


def _reason(
    slowest: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> tuple[str, str, dict[str, float]]:
    """The phase that grew most; where the model runs, whether the images explain it."""
    phases = {}
    for phase in slowest["phases_ms"]:
        usual = [own for row in others if (own := own_phase_ms(row, phase)) is not None]
        mine = own_phase_ms(slowest, phase)
        if mine is not None and usual:
            phases[phase] = mine - sum(usual) / len(usual)
    largest = max(phases, key=phases.__getitem__)
    grown = f"{largest} takes {phases[largest]:.1f} ms more"
    if largest not in _MODEL_PHASES:
        return largest, grown, phases
    ratios = content_ratios(slowest, others)
    most = max(ratios, key=ratios.__getitem__, default=None)
    if most is not None and ratios[most] >= CONTENT_RATIO:
        return "content", f"{grown}, its images have {ratios[most]:.2f} x the {most}", phases
    alike = "with like content" if ratios else "content unknown"
    return largest, f"{grown} {alike}: a slower or busier processor or device", phases


def own_phase_ms(row: Mapping[str, Any], phase: str) -> float | None:
    """A phase without the time in which the rank waited for collectives."""
    spent = row["phases_ms"].get(phase)
    waited = (row.get("exposed_by_phase_ms") or {}).get(phase, 0.0)
    return None if spent is None else max(0.0, spent - waited)


def content_ratios(slowest: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How many times as much a rank had per step as the mean of the others."""
    found = {}
    for what in CONTENTS:
        mine = slowest.get(f"{what}_per_step")
        theirs = [row.get(f"{what}_per_step") for row in others]
        known = [value for value in theirs if value is not None]
        if mine is not None and known and sum(known) > 0:
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


def _slowest_in(work: Mapping[int, Mapping[int, float]], rank: int) -> float | None:
    """Share of steps in which this rank's work took longest."""
    if not work:
        return None
    return sum(max(own, key=own.__getitem__) == rank for own in work.values()) / len(work)


def _lost_ms(work: Mapping[int, Mapping[int, float]]) -> float | None:
    """What perfectly even work would save per step."""
    if not work:
        return None
    return sum(max(own.values()) - sum(own.values()) / len(own) for own in work.values()) / len(work)


def imbalance(content: pl.DataFrame, chosen: Sequence[int]) -> dict[str, Any]:
    """Boxes and pixels by rank: how far the fullest rank of a step is above the mean of its ranks."""
    rows = content.filter(pl.col("step").is_in(list(chosen)))
    found: dict[str, Any] = {}
    for what in ("boxes", "pixels"):
        own = rows.filter(pl.col(what).is_not_null())
        per_step = own.group_by("step").agg(
            pl.col(what).max().alias("most"), pl.col(what).mean().alias("mean")
        )
        per_step = per_step.filter(pl.col("mean") > 0)
        by_rank = own.group_by("rank").agg(pl.col(what).sum()).sort("rank")
        if per_step.height == 0:
            found[what] = {"above_mean": None, "why": f"{what} were not recorded"}
            continue
        found[what] = {
            "above_mean": per_step.select((pl.col("most") / pl.col("mean") - 1).mean()).item(),
            "by_rank": {str(rank): int(value) for rank, value in by_rank.iter_rows()},
            "n": per_step.height,
        }
    return found
