"""Where a script makes optimizers, scalers and activations: what a change of them is written for."""

from __future__ import annotations

from typing import Any

from detscope.record.census.pattern import CensusPattern
from detscope.record.census.written_calls import find_calls

_MADE = ("Adagrad", "Adam", "AdamW", "SGD", "GradScaler", "SiLU", "Hardswish", "Mish")


def tell_facts() -> dict[str, Any]:
    """Calls in the script's own files, unless there are too many to be sure of one."""
    calls = find_calls(_MADE, own_only=True)
    return {"calls": calls if len(calls) <= 20 else []}


PART = CensusPattern("constructors", lambda: lambda _operator: None, facts=tell_facts)
