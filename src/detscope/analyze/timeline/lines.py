"""Lines of code behind the names of a timeline: what a census saw there, and where parts are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from detscope.analyze.findings.finding import name_function
from detscope.analyze.step.beside import CodePlace
from detscope.runs.reader import Run

MOST_LINES = 3  # of a name, the most frequent ones


@dataclass(frozen=True)
class CodeLines:
    """Lines by what they are known for; empty where neither a census nor a script tells."""

    operators: Mapping[str, str] = field(default_factory=dict)  # lines that call an operator
    classes: Mapping[str, str] = field(default_factory=dict)  # lines inside of a class
    parts: Mapping[str, str] = field(default_factory=dict)  # the line that calls a part beside the model

    def tell_module(self, path: str, type_name: str) -> Iterator[tuple[str, str]]:
        """The line of a part, the busiest lines of a module's class."""
        if path in self.parts:
            yield "line", self.parts[path]
        if type_name in self.classes:
            yield "busiest lines of its class", self.classes[type_name]


def read_lines(run: Run) -> CodeLines:
    """Lines of the innermost code outside of torch, the most frequent first."""
    census = run.table("census")
    own_script = run.info.get("verb") in (
        "run",
        "record",
    )  # else the loop is detscope's, and no line of theirs
    places = (run.info.get("part_places") or {}) if own_script else {}
    parts = {path: text for path, told in places.items() if (text := _tell_part(told))}
    if not census.height:
        return CodeLines(parts=parts)
    steps = max(1, census["step"].n_unique())
    seen = (
        census.group_by("what", "file", "line", "function")
        .agg(pl.col("count").sum())
        .sort("count", descending=True, maintain_order=True)
    )
    operators: dict[str, dict[str, float]] = {}
    classes: dict[str, dict[str, float]] = {}
    for what, file, line, function, many in seen.iter_rows():
        place = CodePlace(function=function or "", file=file, line=line)
        text = f"{file}:{line} {name_function(place)}".rstrip()
        of_class = place.function.partition(".")[0] if "." in place.function else ""
        for table, key in ((operators, what), (classes, of_class)):
            if key:
                own = table.setdefault(key, {})
                own[text] = own.get(text, 0.0) + many / steps
    told = [{key: _tell_lines(own) for key, own in table.items()} for table in (operators, classes)]
    return CodeLines(told[0], told[1], parts)


def _tell_lines(counted: Mapping[str, float]) -> str:
    """`loss.py:41 check_boxes (22 per step), and 3 more lines`."""
    ordered = sorted(counted.items(), key=lambda pair: -pair[1])
    told = [f"{text} ({many:,.3g} per step)" for text, many in ordered[:MOST_LINES]]
    left = len(ordered) - len(told)
    return ", ".join([*told, *([f"and {left} more line{'s' if left > 1 else ''}"] if left else [])])


def _tell_part(told: Mapping[str, Mapping[str, object]]) -> str:
    place = told.get("own") or told.get("inside")
    return f"{place['file']}:{place['line']} {place['function']}" if place and place.get("line") else ""
