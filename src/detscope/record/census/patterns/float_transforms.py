"""Where a script writes down that images become floats: a loader's work is no operator of the step."""

from __future__ import annotations

from typing import Any

from detscope.record.census.pattern import CensusPattern
from detscope.record.census.written_calls import find_calls

_TO_FLOAT = ("ToTensor", "ToDtype", "ConvertImageDtype", "ConvertDtype", "ToFloat")


def tell_facts() -> dict[str, Any]:
    """Calls in the script's own files."""
    return {"calls": find_calls(_TO_FLOAT, own_only=True)[:20]}


PART = CensusPattern("float_transforms", lambda: lambda _operator: None, facts=tell_facts)
