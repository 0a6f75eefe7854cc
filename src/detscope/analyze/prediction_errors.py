"""Predicted against measured, point by point: how wrong, by network and altogether."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

CLOSE = 0.1

Point = Mapping[str, Any]


def drawable_points(rows: Sequence[Point]) -> list[Point]:
    """Rows that have both figures, above zero."""
    return [row for row in rows if all((row.get(key) or 0) > 0 for key in ("predicted", "measured"))]


def errors_of(rows: Sequence[Point]) -> dict[str, Any]:
    """Mean error (every network weighs the same), share within 10 %, and the mean of each network."""
    by_network: dict[str, list[float]] = {}
    for row in drawable_points(rows):
        error = abs(row["predicted"] / row["measured"] - 1)
        by_network.setdefault(str(row["network"]), []).append(error)
    errors = [error for found in by_network.values() for error in found]
    means = {name: fmean(found) for name, found in by_network.items()}
    return {
        "rows": len(errors),
        "mean": fmean(means.values()) if means else None,
        "within_10_percent": sum(error <= CLOSE for error in errors) / len(errors) if errors else None,
        "by_network": means,
    }


def panels_of(rows: Sequence[Point]) -> dict[tuple[str, str, str], list[Point]]:
    """Rows by target, protocol and method, in the order in which they come."""
    found: dict[tuple[str, str, str], list[Point]] = {}
    for row in drawable_points(rows):
        key = (str(row.get("target", "")), str(row.get("protocol", "")), str(row.get("method", "")))
        found.setdefault(key, []).append(row)
    return found
