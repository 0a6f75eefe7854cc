"""Figures of a sweep's rows: curves over the batch size, where it stops to pay, speed against size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PAYS = 0.05  # gain of images/s per doubling of the batch below which it does not pay
GROUP = ("network", "stage", "device", "precision", "image_size", "num_workers", "threads", "environment")
_SHOWN = (
    "network", "stage", "device", "batch_size", "step_ms", "step_low_ms", "step_high_ms", "forward_ms",
    "backward_ms", "images_per_s", "interval_width", "interval_reached", "stopped_by", "stability",
    "allocated_bytes", "reserved_bytes", "process_bytes", "parameters", "repetition", "kind", "status",
)  # fmt: skip


def sweep_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything that views of a sweep show."""
    groups = _groups(rows)
    return {
        "rows": [
            {name: row.get(name) for name in _SHOWN} | {"name": short_name(row["network"])} for row in rows
        ],
        "groups": groups,
        "pareto": _pareto(groups),
    }


def _groups(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "ok":
            found.setdefault(tuple(row.get(name) for name in GROUP), []).append(row)
    varying = [name for index, name in enumerate(GROUP) if len({key[index] for key in found}) > 1]
    return [_group(dict(zip(GROUP, key, strict=True)), members, varying) for key, members in found.items()]


def _group(
    key: Mapping[str, Any], members: Sequence[Mapping[str, Any]], varying: Sequence[str]
) -> dict[str, Any]:
    by_batch: dict[int, list[Mapping[str, Any]]] = {}
    for row in members:
        by_batch.setdefault(row["batch_size"], []).append(row)
    points = [_point(batch, rows) for batch, rows in sorted(by_batch.items())]
    measured = [point for point in points if point["images_per_s"] is not None]
    best = max(measured, key=lambda point: point["images_per_s"], default=None)
    extra = [str(key[name]) for name in varying if name not in ("network", "environment") and key[name]]
    return {
        **{name: key[name] for name in GROUP},
        "name": " ".join([short_name(key["network"]), *extra]),
        "parameters": next((row["parameters"] for row in members if row.get("parameters")), None),
        "points": points,
        "best_batch": best and best["batch_size"],
        "best_images_per_s": best and best["images_per_s"],
        "stops_to_pay_at": stops_to_pay([(point["batch_size"], point["images_per_s"]) for point in measured]),
    }


def short_name(network: object) -> str:
    """A network's own name, without the folders it lies in."""
    return str(network).rstrip("/").rpartition("/")[2]


def _point(batch: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Repetitions of the same configuration become their median."""
    names = ("step_ms", "step_low_ms", "step_high_ms", "images_per_s", "allocated_bytes", "process_bytes")
    return {"batch_size": batch, "repetitions": len(rows)} | {name: _middle(rows, name) for name in names}


def _middle(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values: list[float] = sorted(row[name] for row in rows if row.get(name) is not None)
    if not values:
        return None
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def stops_to_pay(curve: Sequence[tuple[int, float]]) -> int | None:
    """The batch from which on no larger one gains 5 % per doubling; None if the last still does."""
    from math import log2

    for index, (batch, rate) in enumerate(curve):
        later = curve[index + 1 :]
        if later and all(
            fast < rate * (1 + PAYS) ** log2(larger / batch) for larger, fast in later if larger > batch
        ):
            return batch
    return None


def _pareto(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Best images/s against parameters, per stage; `front`: no network is both faster and larger.

    More parameters stand for more capacity: on the front, to be faster one must be smaller.
    """
    points = [
        {
            "name": group["name"],
            "network": group["network"],
            "stage": group["stage"],
            "parameters": group["parameters"],
            "images_per_s": group["best_images_per_s"],
        }
        for group in groups
        if group["parameters"] and group["best_images_per_s"]
    ]
    for point in points:
        point["front"] = not any(
            other["stage"] == point["stage"]
            and other["parameters"] >= point["parameters"]
            and other["images_per_s"] >= point["images_per_s"]
            and (other["parameters"], other["images_per_s"]) != (point["parameters"], point["images_per_s"])
            for other in points
        )
    return points
