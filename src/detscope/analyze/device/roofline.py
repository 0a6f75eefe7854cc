"""Arithmetic against time: FLOPs and bytes of modules, and the share of the machine's roof they reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import polars as pl

from detscope.analyze.figure import Clock, Figure
from detscope.analyze.step.modules import ROOT, ModuleFigures
from detscope.analyze.step.steps import PhaseFigures
from detscope.runs.reader import Run

LEAST_MS = 0.005  # shorter modules are all launch cost
DEFINITION = (
    "FLOPs by formula (a multiplication and an addition are two; RoIAlign 8 per sample, NMS 12 per pair of"
    " boxes); bytes are all inputs and outputs of operators, as if nothing stayed in a cache, so that a"
    " module may lie above the memory roof"
)
Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


class RooflinePoint(Figure, frozen=True, kw_only=True):
    """A module's own arithmetic in one direction, per step."""

    path: str  # of the module, dotted
    direction: Direction  # forward or backward
    flops: int  # of its own
    bytes: int  # read and written by its operators
    ms: float  # of its own
    flops_per_byte: float  # arithmetic intensity
    gflops_per_s: float  # what it reaches
    share_of_roof: float | None  # of what the machine can do at this intensity
    above: Literal["arithmetic", "memory"] | None = None  # the roof that it seems to lie above


class Roofline(Figure, frozen=True, kw_only=True):
    """The model's arithmetic against what the machine can do."""

    definition: str = DEFINITION
    images: int | None = None  # in the step that was counted
    flops_forward: int | None = None  # of a step
    flops_backward: int | None = None  # of a step
    clock: Clock = "host"  # whose time the figures are over
    gflops_per_s: float | None = None  # over the phases that were counted
    share_of_peak: float | None = None  # of the arithmetic that the machine can do
    peak_flops_per_s: float | None = None  # measured on this machine
    bandwidth_bytes_per_s: float | None = None  # measured on this machine
    device: str | None = None  # the machine's name
    threads: int | None = None  # with which it was measured
    definition_of_peak: str | None = None  # how the roof was measured
    points: tuple[RooflinePoint, ...] = ()  # most FLOPs first
    why: str | None = None  # why FLOPs are not known


def count_costs(
    run: Run, modules: Sequence[ModuleFigures], phases: Sequence[PhaseFigures], clock: Clock = "host"
) -> tuple[list[ModuleFigures], Roofline]:
    """Modules with their FLOPs, and where they lie below the machine's roof."""
    costs, told = run.table("costs"), run.info.get("costs") or {}
    if not costs.height:
        return list(modules), Roofline(clock=clock, why=told.get("why") or "FLOPs were not counted")
    by_path: dict[str, dict[str, int]] = {}
    for row in costs.filter(pl.col("kind") == "module").iter_rows(named=True):
        own = by_path.setdefault(row["path"] or ROOT, {})
        for key in ("flops", "self_flops", "self_bytes"):
            own[f"{key}_{row['direction']}"] = row[key]
    measured = told.get("peak") or {}
    peak = {key: float(measured[key]) for key in ("peak_flops_per_s", "bandwidth_bytes_per_s") if measured}
    counted, points = [], []
    for module in modules:
        found = by_path.get(module.path) if module.kind == "module" else None
        if found is not None:
            known = ModuleFigures.__struct_fields__
            flops = {key: value for key, value in found.items() if key in known}
            module = msgspec.structs.replace(module, **flops)
            points += [point for way in DIRECTIONS if (point := _place_module(module, found, way, peak))]
        counted.append(module)
    root = by_path.get(ROOT, {})
    done = {way: root.get(f"flops_{way}") for way in DIRECTIONS}
    busy_ms = sum(
        phase.ms for phase in phases if phase.name in DIRECTIONS and root.get(f"flops_{phase.name}")
    )
    speed = sum(value or 0 for value in done.values()) / busy_ms * 1e3 if busy_ms else None
    roofline = Roofline(
        clock=clock,
        images=told.get("images"),
        flops_forward=done["forward"],
        flops_backward=done["backward"],
        gflops_per_s=speed / 1e9 if speed is not None else None,
        share_of_peak=speed / peak["peak_flops_per_s"] if speed is not None and peak else None,
        peak_flops_per_s=peak.get("peak_flops_per_s"),
        bandwidth_bytes_per_s=peak.get("bandwidth_bytes_per_s"),
        device=measured.get("device"),
        threads=measured.get("threads"),
        definition_of_peak=measured.get("definition"),
        points=tuple(sorted(points, key=lambda point: -point.flops)),
    )
    return counted, roofline


def _place_module(
    module: ModuleFigures, found: Mapping[str, int], direction: Direction, peak: Mapping[str, float]
) -> RooflinePoint | None:
    flops, moved = found.get(f"self_flops_{direction}"), found.get(f"self_bytes_{direction}")
    ms = module.self_forward_ms if direction == "forward" else module.self_backward_ms
    if not flops or not moved or ms is None or ms < LEAST_MS:
        return None
    speed, intensity = flops / ms * 1e3, flops / moved
    roof, above = None, None
    if peak:
        roof = min(peak["peak_flops_per_s"], intensity * peak["bandwidth_bytes_per_s"])
        if speed > peak["peak_flops_per_s"]:  # no cache explains that: the roof is too low
            above = "arithmetic"
        elif speed > roof:
            above = "memory"
    return RooflinePoint(
        path=module.path,
        direction=direction,
        flops=flops,
        bytes=moved,
        ms=ms,
        flops_per_byte=intensity,
        gflops_per_s=speed / 1e9,
        share_of_roof=speed / roof if roof else None,
        above=above,  # type: ignore[arg-type]
    )
