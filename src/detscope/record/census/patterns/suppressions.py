"""Suppression of boxes, by the line that asks for it: torchvision's own functions lie between."""

from __future__ import annotations

import sys

from detscope.record.census.callers import find_site_above, is_called_by
from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind

KIND = "suppression"
_FOLDER = "torchvision/ops/"


def listen() -> Listener:
    """One row for every line; whether it was asked for boxes of all classes at once is said beside."""

    def hear(operator: HeardOperator) -> PatternFind | None:
        if operator.name != "torchvision::nms":
            return None
        frame = sys._getframe(1)
        batched = is_called_by(frame, "torchvision/ops/boxes.py", "batched_nms")
        site = find_site_above(frame, _FOLDER) or operator.site
        return PatternFind(KIND, operator.name, f"batched={int(batched)}", site=site)

    return hear


PART = CensusPattern("suppressions", listen)
