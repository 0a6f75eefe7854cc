"""Advice: rules that look at a run's figures; each is one file, one line here and one test."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from detscope.analyze.advice.case import Advice, Case

RULES = (
    "workers",
    "prefetch",
    "receiving",
    "pinned_memory",
    "batch_size",
    "channels_last",
    "precision",
    "padding",
    "frozen_batch_norm",
    "fused_optimizer",
    "synchronisations",
    "nms_limits",
    "compiled",
)
LEAST_GAIN = 0.01  # of the step; less is not worth a change


def advice_for(summary: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """What to change, largest estimated gain first."""
    case = Case(summary, settings or {})
    if not case.step_ms:
        return []
    found: list[Advice] = []
    for name in RULES:
        advice = import_module(f"{__name__}.{name}").advise(case)
        if advice is not None and advice.gain_share >= LEAST_GAIN:
            found.append(advice)
    return [advice.as_dict(case) for advice in sorted(found, key=lambda advice: -advice.gain_share)]
