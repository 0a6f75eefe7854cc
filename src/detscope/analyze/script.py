"""A script that was recorded as it is: what `detscope run` noted of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detscope.analyze.figure import Figure


class ScriptPart(Figure, frozen=True, kw_only=True):
    """The training or the evaluation of a script."""

    name: str
    steps: int | None = None
    batches: int | None = None
    step_p50_ms: float | None = None
    total_s: float | None = None


class CalledModel(Figure, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """A model that the script called."""

    class_name: str | None = None
    role: str | None = None
    inside: tuple[str, ...] = ()  # the wrappers around it, outermost first
    parameters: int | None = None
    calls: int | None = None
    calls_in_training_mode: int | None = None
    forward_ms: float | None = None  # in all


class SeenFunction(Figure, frozen=True, kw_only=True):
    """A function that was seen running outside of all phases."""

    function: str | None = None
    file: str | None = None
    line: int | None = None
    looks: int | None = None  # how often it was seen
    share_of_other: float | None = None


class ScriptFunction(SeenFunction, frozen=True, kw_only=True):
    """One of the script's own, with those of packages that ran in it."""

    ms: float | None = None  # per step
    steps: int | None = None
    inside: tuple[SeenFunction, ...] = ()


class ScriptFigures(Figure, frozen=True, kw_only=True):
    """A script, its parts, the models it called, and whose `other` is."""

    name: str | None = None
    exit_code: int | str | None = None
    command: tuple[str, ...] = ()
    folder: str | None = None
    optimizers: tuple[str, ...] = ()
    optimizer_steps: int | None = None
    optimizer_steps_skipped: int | None = None  # by a gradient scaler
    batches_per_step: float | None = None  # more than one where gradients are accumulated
    batches_skipped: int | None = None
    roots: tuple[CalledModel, ...] = ()
    parts: tuple[ScriptPart, ...] = ()
    other: tuple[ScriptFunction, ...] = ()


def script_figures(told: Mapping[str, Any] | None) -> ScriptFigures | None:
    """What run.json says of a script; None where the run was none."""
    if not told:
        return None
    known = {key: value for key, value in told.items() if value is not None}
    known["parts"] = [{"name": name, **part} for name, part in known.get("parts", {}).items()]
    for row in known.get("other", ()):
        row["inside"] = row.get("inside") or ()
    for row in known.get("roots", ()):
        row["inside"] = row.get("inside") or ()
    return msgspec.convert(known, ScriptFigures)
