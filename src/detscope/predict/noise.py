"""How well the data itself is known: no predictor can be expected to do better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detscope.predict.models.methods import TARGETS
from detscope.predict.samples import Sample, with_target


def noise_floor(samples: Sequence[Sample], target: str) -> float | None:
    """Median relative difference of cases that were measured more than once; None where none was."""
    seen: dict[tuple[str, str, int, str, int], list[float]] = {}
    for one in with_target(samples, TARGETS[target]):
        value = one.value(TARGETS[target])
        if value is not None:
            key = (one.device, one.network, one.level, one.case.graph.name, one.case.batch)
            seen.setdefault(key, []).append(value)
    spread = [(max(found) - min(found)) / float(np.mean(found)) for found in seen.values() if len(found) > 1]
    return float(np.median(spread)) if spread else None


def measured_interval(samples: Sequence[Sample], target: str) -> float | None:
    """Median half width of the 95 % intervals that were measured, as a share; None where none was.

    Only latencies have one: it tells how well a median is known, not how it differs from day to day.
    """
    if target != "latency":
        return None
    halves = [
        (one.latency_high_ms - one.latency_low_ms) / 2 / one.latency_ms
        for one in with_target(samples, "latency_ms")
        if one.latency_ms and one.latency_low_ms is not None and one.latency_high_ms is not None
    ]
    return float(np.median(halves)) if halves else None
