"""Cost against content: how a stage's time grows with detections, proposals and pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEAST_IMAGES = 3
LEAST_FOR_INTERVAL = 10
# what -> (how many of it the slope is for, its unit)
MEASURES = {
    "detections": (100, "ms per 100 boxes"),
    "proposals": (100, "ms per 100 proposals"),
    "pixels": (1_000_000, "ms per megapixel"),
}
_NOT_STAGES = ("other", "forward")


def cost_against_content(
    per_step: Mapping[int, Mapping[str, float]], contents: Mapping[int, Mapping[str, float | None]]
) -> dict[str, dict[str, Any]]:
    """Per stage and measure: slope, the share of the variation it explains, and on how many steps."""
    with_stages = {
        step: times for step, times in per_step.items() if len(times) > len(_NOT_STAGES) + 2
    } or per_step
    names = dict.fromkeys(name for times in with_stages.values() for name in times)
    result: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in _NOT_STAGES:
            continue
        result[name] = {}
        for measure, (per, unit) in MEASURES.items():
            pairs = [
                (float(value), times.get(name, 0.0))
                for step, times in with_stages.items()
                if (value := contents.get(step, {}).get(measure)) is not None
            ]
            result[name][measure] = {**line(pairs, per, measure), "unit": unit}
    return result


def line(pairs: Sequence[tuple[float, float]], per: float, what: str) -> dict[str, Any]:
    """Least-squares slope of (content, ms) pairs per so many of the content; None and why where undefined."""
    nothing = {"slope": None, "ci95": None, "r2": None, "n": len(pairs)}
    if not pairs:
        return {**nothing, "why": f"{what} are not known for this model"}
    x, y = np.asarray(pairs, dtype=float).T
    if len(pairs) < LEAST_IMAGES:
        return {**nothing, "why": f"{len(pairs)} images; {LEAST_IMAGES} are the least for a slope"}
    if np.ptp(x) == 0:
        return {**nothing, "why": f"no variation: always {x[0]:,.0f} {what}"}
    dx, dy = x - x.mean(), y - y.mean()
    spread_x, spread_y = float(dx @ dx), float(dy @ dy)
    slope = float(dx @ dy) / spread_x
    left = max(0.0, spread_y - slope**2 * spread_x)
    result: dict[str, Any] = {"slope": slope * per, "n": len(pairs), "ci95": None}
    # equal times are explained by any content and by none
    result["r2"] = 1 - left / spread_y if spread_y > 0 else None
    if len(pairs) >= LEAST_FOR_INTERVAL:
        error = 1.96 * math.sqrt(left / (len(pairs) - 2) / spread_x)
        result["ci95"] = [(slope - error) * per, (slope + error) * per]
    return result
