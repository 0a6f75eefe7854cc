"""The sections of a run by name: which it has, and why it has not what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from detscope.analyze.drawing import ReportData
from detscope.errors import InputError, UsageError
from detscope.parts import parts_of
from detscope.report.model import Absent, Section
from detscope.report.sections import SectionPart

ALL = "all"


def find_sections(data: ReportData, names: Sequence[str]) -> list[Section]:
    """The sections with these names, in the order of the report; a name without a section is an error."""
    parts = parts_of("sections", SectionPart)
    known = [part.name for part in parts]
    for name in names or [""]:
        if name != ALL and name not in known:
            near = get_close_matches(name, [*known, ALL], 1, 0.6)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"--section {name}: no such section", f"{hint}one of {', '.join(known)}, {ALL}")
    found: list[Section] = []
    for part in parts:
        if part.name not in names and ALL not in names:
            continue
        made = part.make(data)
        if isinstance(made, Section):
            found.append(made)
        elif part.name in names:
            why = made.why if isinstance(made, Absent) else f"a run of {data.summary.verb} has none"
            raise InputError(
                f"{part.name}: nothing was recorded: {why}", "detscope show RUN lists what there is"
            )
    return found
