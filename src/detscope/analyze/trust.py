"""How far the times of a run can be trusted, and what disturbed them as far as the machine's meters tell."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.device.processor import TelemetryFigures
from detscope.analyze.figure import Figure
from detscope.analyze.stats import percent
from detscope.analyze.summary import RunSummary

DISTURBING_SHARE = 0.10  # of all cores: from here on other processes are named as the cause
HARDLY_ANY = 0.01  # of all cores
THROTTLING_SHARE = 5.0  # per cent of the samples
# as `processor.py` calls them: an idle GPU and clocks that somebody set are no disturbance
_HARMLESS = (
    "throttled: idle",
    "throttled: clocks set by an application",
    "throttled: clocks set for a display",
)
CAUSE_UNKNOWN = "cause not known"


class Trust(Figure, frozen=True, kw_only=True):
    """A verdict on the times, what it rests on, and what caused it."""

    verdict: str  # stable, unstable, error, too few
    reason: str  # the spread in words
    spread: float | None  # relative, around the median
    cause: str | None  # of times that are not stable: what the meters tell, or that they do not
    others_share: float | None  # of all cores, used by other processes; None where nobody sampled it


def judge_trust(summary: RunSummary) -> Trust:
    """The verdict on the step times, with the cause where they cannot be trusted."""
    steady = summary.stability
    others = share_of_others(summary)
    cause = _find_cause(summary, others) if steady.verdict == "unstable" else None
    return Trust(
        verdict=steady.verdict, reason=steady.reason, spread=steady.spread, cause=cause, others_share=others
    )


def share_of_others(summary: RunSummary) -> float | None:
    """What other processes used of all cores: the system's load without this process and its workers."""
    whole = _mean_of(summary.telemetry, "system")
    own = _mean_of(summary.telemetry, "process")
    cores = summary.processor.cores if summary.processor is not None else None
    cores = cores or sum(
        row.source.startswith("core:") and row.metric == "cpu_percent" for row in summary.telemetry
    )
    if whole is None or own is None or not cores:
        return None
    workers = sum(
        row.mean or 0.0
        for row in summary.telemetry
        if row.source.startswith("worker:") and row.metric == "cpu_percent"
    )
    # one busy core of a process counts as 100, of the system 100 is all of them
    return min(1.0, max(0.0, whole / 100 - (own + workers) / 100 / cores))


def _mean_of(telemetry: Sequence[TelemetryFigures], source: str) -> float | None:
    found = (row.mean for row in telemetry if row.source == source and row.metric == "cpu_percent")
    return next(found, None)


def _find_cause(summary: RunSummary, others: float | None) -> str:
    throttled = [
        row
        for row in summary.telemetry
        if row.metric.startswith("throttled: ")
        and row.metric not in _HARMLESS
        and (row.mean or 0.0) >= THROTTLING_SHARE
    ]
    causes = []
    if others is not None and others >= DISTURBING_SHARE:
        causes.append(f"other processes used {percent(others)} of the cores")
    causes += [
        f"{row.source} was slowed down ({row.metric.partition(': ')[2]}) in {row.mean:.0f} % of the samples"
        for row in throttled[:1]
    ]
    if causes:
        return " and ".join(causes)
    if others is None:
        return f"{CAUSE_UNKNOWN}: nobody sampled what else the machine did"
    used = f"used {percent(others)} of the cores" if others >= HARDLY_ANY else "hardly ran"
    return f"{CAUSE_UNKNOWN} (other processes {used})"
