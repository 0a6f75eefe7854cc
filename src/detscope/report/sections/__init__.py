"""The sections of a run's report; each is a file here, or a part of another package (`detscope.sections`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from detscope.analyze.drawing import ReportData
from detscope.report.model import Absent, Section

MakeSection = Callable[[ReportData], Section | Absent | None]


@dataclass(frozen=True)
class SectionPart:
    """A question about a run; `make` answers it, says why it cannot, or None where nobody would ask."""

    name: str
    order: int  # of all sections, smallest on top
    make: MakeSection


def make_sections(data: ReportData) -> tuple[list[Section], list[Absent]]:
    """Sections with data, and those without, which say why."""
    from detscope.parts import parts_of

    made = [part.make(data) for part in parts_of("sections", SectionPart)]
    found = [section for section in made if isinstance(section, Section)]
    return found, [section for section in made if isinstance(section, Absent)]
