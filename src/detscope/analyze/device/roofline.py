"""Arithmetic against time: FLOPs and bytes of modules, and the share of the machine's roof they reach."""

from __future__ import annotations

from typing import Any

import polars as pl

from detscope.analyze.step.modules import ROOT
from detscope.runs.reader import Run

LEAST_MS = 0.005  # shorter modules are all launch cost
DEFINITION = (
    "FLOPs by formula (a multiplication and an addition are two; RoIAlign 8 per sample, NMS 12 per pair of"
    " boxes); bytes are all inputs and outputs of operators, as if nothing stayed in a cache, so that a"
    " module may lie above the memory roof"
)


def add_costs(summary: dict[str, Any], run: Run) -> None:
    """FLOPs into the module rows, and the roofline into the summary."""
    costs = run.table("costs")
    told = run.info.get("costs") or {}
    if not costs.height:
        summary["roofline"] = {"points": [], "why": told.get("why") or "FLOPs were not counted"}
        return
    by_path: dict[str, dict[str, int]] = {}
    for row in costs.filter(pl.col("kind") == "module").iter_rows(named=True):
        own = by_path.setdefault(row["path"] or ROOT, {})
        for key in ("flops", "self_flops", "bytes", "self_bytes"):
            own[f"{key}_{row['direction']}"] = row[key]
    points = []
    for module in summary.get("modules", []):
        found = by_path.get(module["path"]) if module["kind"] == "module" else None
        if found is None:
            continue
        module.update({key: value for key, value in found.items() if "flops" in key})
        for direction in ("forward", "backward"):
            point = _point(module, found, direction, told.get("peak") or {})
            if point is not None:
                points.append(point)
    summary["roofline"] = _whole(summary, by_path.get(ROOT, {}), told, points)


def _point(
    module: dict[str, Any], found: dict[str, int], direction: str, peak: dict[str, Any]
) -> dict[str, Any] | None:
    flops, moved = found.get(f"self_flops_{direction}"), found.get(f"self_bytes_{direction}")
    ms = module.get(f"self_{direction}_ms") or 0.0
    if not flops or not moved or ms < LEAST_MS:
        return None
    speed, intensity = flops / ms * 1e3, flops / moved
    return {
        "path": module["path"],
        "direction": direction,
        "flops": flops,
        "bytes": moved,
        "ms": ms,
        "flops_per_byte": intensity,
        "gflops_per_s": speed / 1e9,
        "share_of_roof": speed / _roof(intensity, peak) if peak else None,
    }


def _roof(intensity: float, peak: dict[str, Any]) -> float:
    return min(float(peak["peak_flops_per_s"]), intensity * float(peak["bandwidth_bytes_per_s"]))


def _whole(
    summary: dict[str, Any], root: dict[str, int], told: dict[str, Any], points: list[dict[str, Any]]
) -> dict[str, Any]:
    flops = {way: root.get(f"flops_{way}") for way in ("forward", "backward")}
    phases = summary.get("phases_ms") or {}
    busy_ms = sum(phases.get(way, 0.0) for way in flops if flops[way])
    done = sum(value or 0 for value in flops.values())
    peak = told.get("peak") or {}
    return {
        "definition": DEFINITION,
        "images": told.get("images"),
        "flops": flops,
        "gflops_per_s": done / busy_ms / 1e6 if busy_ms else None,
        "share_of_peak": done / busy_ms * 1e3 / peak["peak_flops_per_s"] if busy_ms and peak else None,
        **peak,
        "definition_of_peak": peak.get("definition"),
        "points": sorted(points, key=lambda point: -point["flops"]),
    } | {"definition": DEFINITION}
