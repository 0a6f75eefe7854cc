"""A script that was recorded as it is: what `detscope run` noted of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detscope.analyze.figure import Figure


class ScriptPart(Figure, frozen=True, kw_only=True):
    """The training or the evaluation of a script."""

    name: str  # training or evaluation
    steps: int | None = None  # how many
    batches: int | None = None  # how many
    step_p50_ms: float | None = None  # the median step
    total_s: float | None = None  # of all steps


class CalledModel(Figure, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """A model that the script called."""

    class_name: str | None = None  # of its class
    role: str | None = None  # what it is to the script
    inside: tuple[str, ...] = ()  # the wrappers around it, outermost first
    parameters: int | None = None  # numbers that are trained or fixed
    calls: int | None = None  # of forward
    calls_in_training_mode: int | None = None  # of these
    forward_ms: float | None = None  # in all


class SeenFunction(Figure, frozen=True, kw_only=True):
    """A function that was seen running outside of all phases."""

    function: str | None = None  # with its class
    file: str | None = None  # its name
    line: int | None = None  # of the file
    looks: int | None = None  # how often it was seen
    share_of_other: float | None = None  # of the time in no phase


class ScriptFunction(SeenFunction, frozen=True, kw_only=True):
    """One of the script's own, with those of packages that ran in it."""

    ms: float | None = None  # per step
    steps: int | None = None  # in which it was seen
    inside: tuple[SeenFunction, ...] = ()


class ScriptFigures(Figure, frozen=True, kw_only=True):
    """A script, its parts, the models it called, and whose `other` is."""

    name: str | None = None  # of its file or module
    exit_code: int | str | None = None  # that it left
    command: tuple[str, ...] = ()  # that started it
    folder: str | None = None  # in which it ran
    optimizers: tuple[str, ...] = ()  # their classes
    optimizer_steps: int | None = None  # that were made
    optimizer_steps_skipped: int | None = None  # by a gradient scaler
    batches_per_step: float | None = None  # more than one where gradients are accumulated
    batches_skipped: int | None = None  # in training mode, that did not go backward
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
