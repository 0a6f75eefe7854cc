"""What a step does beside its model: named parts of the phases `optimizer` and `other`.

Parts that were heard are measured; of the rest of `other` a timer saw which of the script's functions ran.
What neither tells is a part without a name, so that the parts of a phase add up to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.script import ScriptFigures
from detscope.analyze.step.columns import total
from detscope.analyze.step.steps import PhaseFigures, TypicalSteps

BESIDE = ("optimizer", "other")
UNNAMED = "(rest)"
_FEWEST_LOOKS = 3  # from which on a function that was only seen is told
_WORTH = 0.001  # share of the step from which what has no name is told


class CodePlace(Figure, frozen=True, kw_only=True):
    """A line of code."""

    function: str  # with its class
    file: str  # of packages with their folders, of a script its name
    line: int  # of the file


class StepPart(Figure, frozen=True, kw_only=True):
    """A part of the optimizer's phase or of `other` in the typical step; parts of a phase add up to it."""

    name: str  # ema, clip_gradients, step, ...; where it was only seen, the script's function
    phase: str  # optimizer or other
    ms: float  # per step on the host's clock, without the parts inside of it
    share: float  # of the step
    known: Literal["measured", "sampled", "rest"]  # heard at its borders, seen by a timer, or what is left
    calls: float | None = None  # per step, where it was measured; of several functions the most called
    looks: int | None = None  # how often it was seen, where it was sampled
    own: CodePlace | None = None  # the script's own line
    inside: CodePlace | None = None  # the innermost line that is neither the script's nor torch's


def step_parts(
    tables: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],  # spans, nodes, steps
    typical: TypicalSteps,
    phases: Iterable[PhaseFigures],
    places: Mapping[str, Any] | None,
    script: ScriptFigures | None,
) -> tuple[StepPart, ...]:
    """Most expensive first; of each phase the unnamed last."""
    step_ms = typical.p50_ms or 0.0
    found: list[StepPart] = []
    for phase in phases:
        if phase.name not in BESIDE or not step_ms:
            continue
        ms = phase.ms if phase.host_ms is None else phase.host_ms
        parts = list(_measured_parts(*tables, typical, phase.name, ms, step_ms, places or {}))
        if script is not None and phase.name == "other":
            parts += _sampled_parts(script, ms, step_ms)
        found += sorted(parts, key=lambda part: -part.ms)
        left = ms - sum(part.ms for part in parts)
        if left > _WORTH * step_ms:
            found.append(
                StepPart(name=UNNAMED, phase=phase.name, ms=left, share=left / step_ms, known="rest")
            )
    return tuple(found)


def _measured_parts(
    spans: pl.DataFrame,
    nodes: pl.DataFrame,
    steps: pl.DataFrame,
    typical: TypicalSteps,
    phase: str,
    phase_ms: float,
    step_ms: float,
    places: Mapping[str, Any],
) -> Iterator[StepPart]:
    """Self times by name, as shares of the phase in the steps whose modules were heard."""
    heard = spans.filter(pl.col("step").is_in(typical.steps))
    own = heard.filter((pl.col("direction") == phase) & ~pl.col("kind").is_in(["stage", "outside"]))
    if own.is_empty():
        return
    numbers = heard["step"].unique()
    whole = steps.filter((pl.col("phase") == phase) & pl.col("step").is_in(numbers.implode()))
    whole_ns = total(whole["wall_ns"])
    stages = {(row["kind"], row["path"]): row["stage"] for row in nodes.to_dicts()}
    grouped = own.group_by("kind", "path").agg(pl.col("self_ns").sum(), pl.col("calls").sum())
    named: dict[str, list[tuple[float, float, str]]] = {}
    for kind, path, self_ns, calls in grouped.select("kind", "path", "self_ns", "calls").iter_rows():
        name = (stages.get((kind, path)) or path).lstrip(".")
        named.setdefault(name, []).append((self_ns, calls, path))
    for name, rows in named.items():
        ms = sum(self_ns for self_ns, _, _ in rows) / whole_ns * phase_ms if whole_ns else 0.0
        _, _, path = max(rows)
        place = places.get(path) or {}
        yield StepPart(
            name=name,
            phase=phase,
            ms=ms,
            share=ms / step_ms,
            known="measured",
            calls=max(calls for _, calls, _ in rows) / max(1, numbers.len()),
            own=_read_place(place.get("own")),
            inside=_read_place(place.get("inside")),
        )


def _sampled_parts(script: ScriptFigures, phase_ms: float, step_ms: float) -> Iterator[StepPart]:
    for row in script.other:
        if row.function is None or row.share_of_other is None or (row.looks or 0) < _FEWEST_LOOKS:
            continue
        ms = row.share_of_other * phase_ms
        inner = max(row.inside, key=lambda one: one.looks or 0, default=None)
        named = inner.function if inner is not None and row.function == "<module>" else None
        yield StepPart(
            name=named or row.function,
            phase="other",
            ms=ms,
            share=ms / step_ms,
            known="sampled",
            looks=row.looks,
            own=_read_place(msgspec.structs.asdict(row)),
            inside=None if inner is None else _read_place(msgspec.structs.asdict(inner)),
        )


def _read_place(told: Mapping[str, Any] | None) -> CodePlace | None:
    if not told or told.get("line") is None:
        return None
    return CodePlace(function=str(told["function"]), file=str(told["file"]), line=told["line"])
