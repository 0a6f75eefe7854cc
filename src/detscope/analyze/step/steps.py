"""The step itself: its headline, its phases, its outliers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from detscope.analyze.figure import Clock, Figure
from detscope.analyze.stats import Interval, median_interval, percentile_or_why, robust_spread
from detscope.analyze.step.columns import median, total
from detscope.analyze.step.steady import Steadiness, judge_steadiness, outlier_indices, warmup_length

MEASURED_MODES = (
    "recorded",
    "ops",
    "memory",
    "census",
    "warmup",
)  # whose steps count: the first that a run has
PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")


class TimeFigures(Figure, frozen=True, kw_only=True):
    """Durations of something that happened again and again, in milliseconds of wall time."""

    p50: float | None = None  # the median
    ci95: Interval | None = None  # of the median; needs six samples
    n: int = 0  # samples
    mean: float | None = None  # over all samples
    spread: float | None = None  # the middle half's width as that of a normal law, over the median
    p95: float | None = None  # only where the samples support it
    p95_why: str | None = None  # why there is none
    p99: float | None = None  # only where the samples support it
    p99_why: str | None = None  # why there is none


class StepFigures(TimeFigures, frozen=True, kw_only=True):
    """Wall time from asking for a batch to asking for the next; mean and percentiles are of bare ones too."""

    mean_n: int = 0  # steps of the mean, p95 and p99


class PhaseFigures(Figure, frozen=True, kw_only=True):
    """A phase of the typical step; phases add up to the median step of their clock."""

    name: str  # data, transfer, forward, backward, optimizer, other
    ms: float  # its share times the median step
    share: float  # of the typical steps' time
    host_ms: float | None = None  # on the host's clock, where ms is on the device's
    idle_ms: float | None = None  # of ms, the device stood idle: at most, where marks tell it
    p50: float | None = None  # median of its own durations
    ci95: Interval | None = None  # 95 % interval of p50
    n: int = 0  # steps
    clock: Clock = "host"  # of ms, share, p50


class Outlier(Figure, frozen=True, kw_only=True):
    """A step far above the median."""

    step: int  # its number, from 0
    ms: float  # its wall time
    times_median: float | None  # how many times as long
    phase: str  # the one that grew most
    growth_ms: float  # of that phase, over its median
    clock: Clock = "host"  # of phase and growth_ms
    host_phase: str | None = None  # the one that grew most on the host, where the clock is the device's
    host_growth_ms: float | None = None  # of that one
    first_of_epoch: bool  # with the start of the loader
    boxes: int | None  # annotated where it trained, found where it inferred
    file: str | None = None  # of an inference: the images in it
    size: str | None = None  # and their width and height
    proposals: int | None = None  # of the region proposals
    special: tuple[str, ...] = ()  # what is larger about them than about the median image
    why: str  # all that in words


class SideSteps(Figure, frozen=True, kw_only=True):
    """Steps of another scale: recorded with more than the step's figures, and so slower or faster."""

    mode: str  # ops: under the operator profiler; memory: with every block of memory
    n: int  # steps
    p50: float  # median of their wall time, ms
    times_median: float  # how many times the median step

    @property
    def words(self) -> str:
        """`3 operator steps, which took 1.4 times the median step`."""
        kind = "operator" if self.mode == "ops" else self.mode
        many = f"{self.n} {kind} step{'' if self.n == 1 else 's'}"
        return f"{many}, which took {self.times_median:.2g} times the median step"


class WarmupFigures(Figure, frozen=True, kw_only=True):
    """Steps before measuring began."""

    n: int  # steps
    first_ms: float | None  # the very first step
    p50: float | None  # median


@dataclass(frozen=True)
class TypicalSteps:
    """The steps the figures are made of, and those set apart."""

    mode: str  # which kind of steps these are: "recorded", or "ops" where there are no others
    steps: list[int]  # steady and typical: shares are taken from these
    measured: list[int]  # all that were measured, outliers included: medians are taken from these
    warmup: list[int]
    outliers: list[int]
    steadiness: Steadiness
    p50_ms: float | None
    timed: list[int] = field(default_factory=list)  # measured and bare: of these are mean, percentiles, speed


def choose_typical_steps(steps: pl.DataFrame, find_slow_start: bool = True) -> TypicalSteps:
    """Choose the steps that count; a slow start is only looked for where all steps do the same work."""
    whole = steps.filter(pl.col("phase") == "step").sort("step")
    kinds = set(whole["mode"].to_list())
    mode = next((mode for mode in MEASURED_MODES if mode in kinds), "recorded")
    warmup = whole.filter(pl.col("mode") == "warmup")["step"].to_list() if mode != "warmup" else []
    chosen = whole.filter(pl.col("mode") == mode)
    numbers, durations = chosen["step"].to_list(), [ns / 1e6 for ns in chosen["wall_ns"].to_list()]
    slow_start = warmup_length(durations) if find_slow_start else 0
    warmup = warmup + numbers[:slow_start]
    numbers, durations = numbers[slow_start:], durations[slow_start:]
    outliers = [numbers[index] for index in outlier_indices(durations)]
    apart = set(outliers)
    typical = [number for number in numbers if number not in apart]
    kept = set(numbers)
    if mode == "recorded" and numbers:
        bare = whole.filter((pl.col("mode") == "bare") & (pl.col("step") >= numbers[0]))
        kept.update(bare["step"].to_list())
    return TypicalSteps(
        mode, typical, numbers, warmup, outliers, judge_steadiness(durations), median(durations), sorted(kept)
    )


def time_figures(durations: list[float]) -> TimeFigures:
    """Median, interval, mean, spread and the percentiles the samples support."""
    (p95, p95_why), (p99, p99_why) = (percentile_or_why(durations, percentile) for percentile in (95, 99))
    return TimeFigures(
        p50=median(durations),
        ci95=median_interval(durations),
        n=len(durations),
        mean=sum(durations) / len(durations) if durations else None,
        spread=robust_spread(durations),
        p95=p95,
        p95_why=p95_why,
        p99=p99,
        p99_why=p99_why,
    )


def step_figures(steps: pl.DataFrame, typical: TypicalSteps) -> StepFigures:
    """The headline: wall time of a step; what is rare is looked for in bare steps too."""
    measured = time_figures(_durations_of(steps, "step", typical.measured))
    timed = time_figures(_durations_of(steps, "step", typical.timed))
    middle = {name: getattr(measured, name) for name in ("p50", "ci95", "n", "spread")}
    rest = {name: getattr(timed, name) for name in ("mean", "p95", "p95_why", "p99", "p99_why")}
    return StepFigures(**middle, **rest, mean_n=timed.n)


def images_per_second(steps: pl.DataFrame, content: pl.DataFrame, typical: TypicalSteps) -> float | None:
    """Images of all timed steps over their time: what a person waits for, whichever steps were recorded."""
    images = dict(content.select("step", "images").drop_nulls().iter_rows())
    chosen = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in([*images]))
    timed = chosen.filter(pl.col("step").is_in(typical.timed)).select("step", "wall_ns")
    spent_ns = total(timed["wall_ns"])
    return sum(images[step] for step in timed["step"].to_list()) / spent_ns * 1e9 if spent_ns else None


def phase_figures(steps: pl.DataFrame, typical: TypicalSteps) -> list[PhaseFigures]:
    """Phases of a typical step: share of the time, times the median step, so that they add up to it."""
    return share_phases(steps, typical.steps, typical.p50_ms or 0.0)


def share_phases(steps: pl.DataFrame, numbers: list[int], step_ms: float) -> list[PhaseFigures]:
    """Phases of these steps by their shares, so that they add up to `step_ms`."""
    wall = sum(_durations_of(steps, "step", numbers))
    found = []
    for phase in PHASES if numbers else ():
        durations = _durations_of(steps, phase, numbers)
        share = sum(durations) / wall if wall else 0.0
        found.append(
            PhaseFigures(
                name=phase,
                ms=share * step_ms,
                share=share,
                p50=median(durations),
                ci95=median_interval(durations),
                n=len(durations),
            )
        )
    return found


def find_outliers(
    steps: pl.DataFrame, content: pl.DataFrame, typical: TypicalSteps, device: pl.DataFrame | None = None
) -> list[Outlier]:
    """Steps far above the median, with the phase that grew most and what was in them.

    `device` has the phases on the device's clock; what grew on the host is then said beside it.
    """
    middle = typical.p50_ms or 0.0
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(typical.outliers))
    durations = {step: ns / 1e6 for step, ns in whole.select("step", "wall_ns").iter_rows()}
    growth_on = {"host": _find_growth(steps, typical)}
    if device is not None:
        growth_on["device"] = _find_growth(device, typical)
    contents = {row["step"]: row for row in content.filter(pl.col("step").is_in(typical.outliers)).to_dicts()}
    found = []
    for number in typical.outliers:
        duration = durations[number]
        clock: Clock = "device" if number in growth_on.get("device", {}) else "host"
        phase, growth_ms = growth_on[clock].get(number, ("other", 0.0))
        inside = contents.get(number, {})
        first, boxes = bool(inside.get("first_of_epoch")), inside.get("boxes")
        why = f"{phase} took {growth_ms:.1f} ms more than usual"
        beside: dict[str, Any] = {}
        if clock == "device":
            on_host, more_ms = growth_on["host"].get(number, ("other", 0.0))
            why += f" on the device, {on_host} {more_ms:.1f} ms more on the host"
            beside = {"clock": clock, "host_phase": on_host, "host_growth_ms": more_ms}
        why += "; first step of a pass" if first else ""
        why += f"; {boxes} boxes" if boxes is not None else ""
        found.append(
            Outlier(
                step=number,
                ms=duration,
                times_median=duration / middle if middle else None,
                phase=phase,
                growth_ms=growth_ms,
                first_of_epoch=first,
                boxes=boxes,
                why=why,
                **beside,
            )
        )
    return found


def _find_growth(steps: pl.DataFrame, typical: TypicalSteps) -> dict[int, tuple[str, float]]:
    """Of every outlier the phase that grew most over its median, and by how many ms."""
    usual = {phase: median(_durations_of(steps, phase, typical.steps)) or 0.0 for phase in PHASES}
    slow = steps.filter(pl.col("step").is_in(typical.outliers) & pl.col("phase").is_in(PHASES))
    times: dict[int, dict[str, float]] = {}
    for number, phase, wall_ns in slow.select("step", "phase", "wall_ns").iter_rows():
        own = times.setdefault(number, dict.fromkeys(PHASES, 0.0))
        own[phase] += wall_ns / 1e6
    growth = {number: {phase: own[phase] - usual[phase] for phase in PHASES} for number, own in times.items()}
    return {number: max(own.items(), key=lambda item: item[1]) for number, own in growth.items()}


def side_steps(steps: pl.DataFrame, typical: TypicalSteps) -> tuple[SideSteps, ...]:
    """Steps beside the measured ones that other figures are made of, with their own scale."""
    found = []
    for mode in ("ops", "memory", "census"):
        chosen = steps.filter((pl.col("phase") == "step") & (pl.col("mode") == mode))
        middle = median([ns / 1e6 for ns in chosen["wall_ns"].to_list()])
        if middle is not None and mode != typical.mode and typical.p50_ms:
            times = middle / typical.p50_ms
            found.append(SideSteps(mode=mode, n=chosen.height, p50=middle, times_median=times))
    return tuple(found)


def warmup_figures(steps: pl.DataFrame, typical: TypicalSteps) -> WarmupFigures:
    """The steps before measuring began."""
    durations = _durations_of(steps, "step", typical.warmup)
    first = durations[0] if durations else None
    return WarmupFigures(n=len(durations), first_ms=first, p50=median(durations))


def _durations_of(steps: pl.DataFrame, phase: str, numbers: list[int]) -> list[float]:
    chosen = steps.filter((pl.col("phase") == phase) & pl.col("step").is_in(numbers)).sort("step")
    return [ns / 1e6 for ns in chosen["wall_ns"].to_list()]
