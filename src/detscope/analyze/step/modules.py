"""Modules and stages of a typical step, forward and backward, total and self."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import polars as pl

from detscope.analyze.figure import Clock, Figure
from detscope.analyze.stats import Interval
from detscope.analyze.step.columns import total
from detscope.analyze.step.steps import TypicalSteps

REST = "(rest of the model)"
OUTSIDE = "(outside modules)"
ROOT = "(model)"
DIRECTIONS = {"forward": "forward", "backward": "backward", "recompute": "backward"}  # direction -> phase


class ModuleFigures(Figure, frozen=True, kw_only=True):
    """A module, method, function, part or region in the typical step; self times add up to their phase.

    On a device's clock a time that could not be told is None, and lies in the self time of what calls it.
    """

    path: str  # dotted, below the model
    kind: str  # module, method, function, part (of what a call does itself), region or outside
    type: str  # its class
    stage: str | None  # that it belongs to
    parameters: int  # numbers that are trained or fixed
    calls: float  # per step, forward
    forward_ms: float | None  # of the typical step
    backward_ms: float | None  # of the typical step
    self_forward_ms: float | None  # without the modules below it
    self_backward_ms: float | None  # without the modules below it
    recompute_ms: float | None  # of backward: running forward again under checkpointing
    total_ms: float | None  # forward and backward
    share: float | None  # of the step
    host_ms: float | None = None  # total on the host's clock, where the others are on the device's
    idle_ms: float | None = None  # of total_ms, the device stood idle: at most, where marks tell it
    why: str | None = None  # why the device's clock does not tell its time
    memory_bytes: int | None = None  # alive at the peak
    flops_forward: int | None = None  # of a step
    flops_backward: int | None = None  # of a step
    flops_recompute: int | None = None  # of a step: forward again under checkpointing
    self_flops_forward: int | None = None  # without the modules below it
    self_flops_backward: int | None = None  # without the modules below it
    self_flops_recompute: int | None = None  # without the modules below it

    @property
    def self_ms(self) -> float | None:
        """Its own time, forward and backward."""
        if self.self_forward_ms is None or self.self_backward_ms is None:
            return None
        return self.self_forward_ms + self.self_backward_ms


class StageFigures(Figure, frozen=True, kw_only=True):
    """A stage of the detector in the typical step; a parent holds its parts."""

    name: str  # with its parents: roi_heads.box_head
    depth: int  # among its parents
    forward_ms: float  # of the typical step
    backward_ms: float  # of the typical step
    total_ms: float  # forward and backward
    self_ms: float  # without its parts
    share: float  # of the step
    host_ms: float | None = None  # total on the host's clock, where the others are on the device's
    idle_ms: float | None = None  # of total_ms, the device stood idle: at most, where marks tell it
    clock: Clock = "host"  # of the other times
    p50: float | None = None  # median of its own durations; of an inference
    ci95: Interval | None = None  # 95 % interval of p50
    p95: float | None = None  # of its own durations
    p95_why: str | None = None  # why there is none
    n: int | None = None  # durations
    in_model_ms: float | None = None  # of `other`: inside the model, but in no stage
    in_loop_ms: float | None = None  # of `other`: around the model


def _scales(spans: pl.DataFrame, phases_ms: dict[str, float]) -> dict[str, float]:
    """Per phase: from summed ns to ms of the typical step, so that self times add up to the phase."""
    scales = {}
    for phase in ("forward", "backward"):
        directions = [direction for direction, of in DIRECTIONS.items() if of == phase]
        chosen = spans.filter(pl.col("direction").is_in(directions) & (pl.col("kind") != "stage"))
        summed = total(chosen["self_ns"])
        scales[phase] = phases_ms.get(phase, 0.0) / summed if summed else 0.0
    return scales


def module_figures(
    spans: pl.DataFrame, nodes: pl.DataFrame, typical: TypicalSteps, phases_ms: dict[str, float]
) -> list[ModuleFigures]:
    """One row per module, method, function and region, most expensive first."""
    spans = spans.filter(pl.col("step").is_in(typical.steps) & pl.col("direction").is_in(list(DIRECTIONS)))
    scales = _scales(spans, phases_ms)
    count = max(1, spans["step"].n_unique())
    known = {(row["kind"], row["path"]): row for row in nodes.to_dicts()}
    summed: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    columns = ("kind", "path", "direction", "total_ns", "self_ns", "calls")
    grouped = spans.filter(pl.col("kind") != "stage").group_by("kind", "path", "direction")
    found = grouped.agg(pl.col("total_ns").sum(), pl.col("self_ns").sum(), pl.col("calls").sum())
    for kind, path, direction, total_ns, self_ns, calls in (
        found.sort("kind", "path", "direction").select(columns).iter_rows()
    ):
        outside, phase = kind == "outside", DIRECTIONS[direction]
        own = summed["outside" if outside else kind, OUTSIDE if outside else path]
        whole_ms, self_ms = total_ns * scales[phase], self_ns * scales[phase]
        own[f"{phase}_ms"] += self_ms if outside else whole_ms
        own[f"self_{phase}_ms"] += self_ms
        if direction == "recompute":
            own["recompute_ms"] += whole_ms
        if direction == "forward" and not outside:
            own["calls"] += calls / count
    step_ms = typical.p50_ms or 0.0
    rows = []
    for (kind, path), own in summed.items():
        about, whole_ms = known.get((kind, path), {}), own["forward_ms"] + own["backward_ms"]
        rows.append(
            ModuleFigures(
                path=path or ROOT,
                kind=kind,
                type=about.get("type") or "",
                stage=about.get("stage"),
                parameters=about.get("parameters") or 0,
                calls=own["calls"],
                forward_ms=own["forward_ms"],
                backward_ms=own["backward_ms"],
                self_forward_ms=own["self_forward_ms"],
                self_backward_ms=own["self_backward_ms"],
                recompute_ms=own["recompute_ms"],
                total_ms=whole_ms,
                share=whole_ms / step_ms if step_ms else 0.0,
            )
        )
    return sort_modules(rows)


def sort_modules(rows: Iterable[ModuleFigures]) -> list[ModuleFigures]:
    """Most expensive first; those without a time last, by what the host says."""
    return sorted(rows, key=lambda row: (row.total_ms is None, -(row.total_ms or row.host_ms or 0.0)))


def stage_figures(
    spans: pl.DataFrame, typical: TypicalSteps, phases_ms: dict[str, float], order: list[str]
) -> list[StageFigures]:
    """Stages as a tree in the order of the model: a parent holds its parts and its own time."""
    spans = spans.filter(pl.col("step").is_in(typical.steps) & pl.col("direction").is_in(list(DIRECTIONS)))
    scales = _scales(spans, phases_ms)
    own: dict[str, dict[str, float]] = defaultdict(lambda: {"forward": 0.0, "backward": 0.0})
    chosen = (
        spans.filter(pl.col("kind") == "stage").group_by("path", "direction").agg(pl.col("self_ns").sum())
    )
    for item in chosen.sort("path", "direction").to_dicts():
        phase = DIRECTIONS[item["direction"]]
        own[item["path"] or REST][phase] += item["self_ns"] * scales[phase]
    outside = spans.filter(pl.col("kind") == "outside").group_by("direction").agg(pl.col("self_ns").sum())
    for item in outside.to_dicts():
        phase = DIRECTIONS[item["direction"]]
        own[REST][phase] += item["self_ns"] * scales[phase]
    return arrange_stages(own, typical.p50_ms or 0.0, order)


def arrange_stages(
    own: Mapping[str, Mapping[str, float]], step_ms: float, order: list[str]
) -> list[StageFigures]:
    """Stages by their own time in each direction as a tree: parents hold their parts."""
    names = set(own)
    for name in list(own):  # a parent without time of its own is still a row
        names |= set(_list_prefixes(name))
    rows = []
    for name in sorted(names, key=lambda n: (n == REST, n)):
        below = [part for part in own if part == name or part.startswith(f"{name}.")]
        forward = sum(own[part]["forward"] for part in below)
        backward = sum(own[part]["backward"] for part in below)
        rows.append(
            StageFigures(
                name=name,
                depth=0 if name == REST else name.count("."),
                forward_ms=forward,
                backward_ms=backward,
                total_ms=forward + backward,
                self_ms=sum(own[name].values()) if name in own else 0.0,
                share=(forward + backward) / step_ms if step_ms else 0.0,
            )
        )
    known = dict.fromkeys(prefix for name in order for prefix in _list_prefixes(name))
    rank = {name: index for index, name in enumerate(known)}

    def place_of(row: StageFigures) -> list[tuple[int, str]]:
        return [
            (rank.get(prefix, len(rank) + (prefix == REST)), prefix) for prefix in _list_prefixes(row.name)
        ]

    return sorted(rows, key=place_of)  # as a detector passes through them; unknown ones last


def _list_prefixes(name: str) -> list[str]:
    """A stage's parents and itself, outermost first."""
    parts = name.split(".") if name != REST else [name]
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def backward_attributed(spans: pl.DataFrame, typical: TypicalSteps) -> float | None:
    """Share of the backward phase that belongs to modules, by the marks at module borders."""
    backward = spans.filter(
        pl.col("step").is_in(typical.steps)
        & pl.col("direction").is_in(["backward", "recompute"])
        & (pl.col("kind") != "stage")
    )
    whole = total(backward["self_ns"])
    outside = total(backward.filter(pl.col("kind") == "outside")["self_ns"])
    return 1 - outside / whole if whole else None
