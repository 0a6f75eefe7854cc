"""Modules and stages of a typical step, forward and backward, total and self."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from detscope.analyze.step.columns import total
from detscope.analyze.step.steps import TypicalSteps

REST = "(rest of the model)"
OUTSIDE = "(outside modules)"
ROOT = "(model)"
DIRECTIONS = {"forward": "forward", "backward": "backward", "recompute": "backward"}  # direction -> phase


def _scales(spans: pl.DataFrame, phases_ms: dict[str, float]) -> dict[str, float]:
    """Per phase: from summed ns to ms of the typical step, so that self times add up to the phase."""
    scales = {}
    for phase in ("forward", "backward"):
        directions = [direction for direction, of in DIRECTIONS.items() if of == phase]
        chosen = spans.filter(pl.col("direction").is_in(directions) & (pl.col("kind") != "stage"))
        summed = total(chosen["self_ns"])
        scales[phase] = phases_ms.get(phase, 0.0) / summed if summed else 0.0
    return scales


def module_rows(
    spans: pl.DataFrame, nodes: pl.DataFrame, typical: TypicalSteps, phases_ms: dict[str, float]
) -> list[dict[str, Any]]:
    """One row per module, method, function and region, most expensive first."""
    spans = spans.filter(pl.col("step").is_in(typical.steps) & pl.col("direction").is_in(list(DIRECTIONS)))
    scales = _scales(spans, phases_ms)
    count = max(1, spans["step"].n_unique())
    known = {(row["kind"], row["path"]): row for row in nodes.to_dicts()}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    grouped = (
        spans.filter(pl.col("kind") != "stage")
        .group_by("kind", "path", "direction")
        .agg(
            pl.col("total_ns").sum(),
            pl.col("self_ns").sum(),
            pl.col("calls").sum(),
            pl.col("device_self_ns").sum(),
        )
    )
    for item in grouped.sort("kind", "path", "direction").to_dicts():
        kind, path, direction = item["kind"], item["path"], item["direction"]
        key = ("outside", OUTSIDE) if kind == "outside" else (kind, path)
        about = known.get((kind, path), {})
        row = rows.setdefault(
            key,
            {
                "path": OUTSIDE if kind == "outside" else path or ROOT,
                "kind": kind,
                "type": about.get("type") or "",
                "stage": about.get("stage"),
                "parameters": about.get("parameters") or 0,
                "calls": 0.0,
                "forward_ms": 0.0,
                "backward_ms": 0.0,
                "self_forward_ms": 0.0,
                "self_backward_ms": 0.0,
                "recompute_ms": 0.0,
            },
        )
        phase = DIRECTIONS[direction]
        whole, own = item["total_ns"] * scales[phase], item["self_ns"] * scales[phase]
        row[f"{phase}_ms"] += own if kind == "outside" else whole
        row[f"self_{phase}_ms"] += own
        if direction == "recompute":
            row["recompute_ms"] += whole
        if direction == "forward" and kind != "outside":
            row["calls"] += item["calls"] / count
    step_ms = typical.p50_ms or 0.0
    for row in rows.values():
        row["total_ms"] = row["forward_ms"] + row["backward_ms"]
        row["share"] = row["total_ms"] / step_ms if step_ms else 0.0
    return sorted(rows.values(), key=lambda row: -row["total_ms"])


def stage_rows(
    spans: pl.DataFrame, typical: TypicalSteps, phases_ms: dict[str, float]
) -> list[dict[str, Any]]:
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
    names = set(own)
    for name in list(own):  # a parent without time of its own is still a row
        parts = name.split(".") if name != REST else [name]
        names |= {".".join(parts[: depth + 1]) for depth in range(len(parts))}
    step_ms = typical.p50_ms or 0.0
    rows = []
    for name in sorted(names, key=lambda n: (n == REST, n)):
        below = [part for part in own if part == name or part.startswith(f"{name}.")]
        forward = sum(own[part]["forward"] for part in below)
        backward = sum(own[part]["backward"] for part in below)
        rows.append(
            {
                "name": name,
                "depth": 0 if name == REST else name.count("."),
                "forward_ms": forward,
                "backward_ms": backward,
                "total_ms": forward + backward,
                "self_ms": sum(own[name].values()) if name in own else 0.0,
                "share": (forward + backward) / step_ms if step_ms else 0.0,
            }
        )
    return rows


def in_model_order(rows: list[dict[str, Any]], order: list[str]) -> list[dict[str, Any]]:
    """Stages in the order in which a detector passes through them; unknown ones last."""
    rank = {name: index for index, name in enumerate(order)}

    def key(row: dict[str, Any]) -> list[tuple[int, str]]:
        parts = row["name"].split(".") if row["name"] != REST else [row["name"]]
        prefixes = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
        return [(rank.get(prefix, len(rank) + (prefix == REST)), prefix) for prefix in prefixes]

    return sorted(rows, key=key)


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
