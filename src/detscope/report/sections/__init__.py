"""The sections of a run's report; each is a file here, or a part of another package (`detscope.sections`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from detscope.analyze.drawing import ReportData
from detscope.report.model import Absent, Section

MakeSection = Callable[[ReportData], Section | Absent | None]


@dataclass(frozen=True)
class SectionPart:
    """A question about a run; `make` answers it, says why it cannot, or None where nobody would ask."""

    name: str
    order: int  # of all sections, smallest on top
    make: MakeSection
    order_in: Mapping[str, int] = field(default_factory=dict)  # verb -> its place there
    unasked: tuple[str, ...] = ()  # verbs whose runs cannot have it: its absence is no gap there


def make_sections(data: ReportData) -> tuple[list[Section], list[Absent]]:
    """Sections with data in the order of the run's verb, and those without, which say why."""
    from detscope.parts import parts_of

    verb = data.summary.verb or ""
    parts = sorted(parts_of("sections", SectionPart), key=lambda part: part.order_in.get(verb, part.order))
    made = [(part, part.make(data)) for part in parts]
    found = [section for _, section in made if isinstance(section, Section)]
    return found, [why for part, why in made if isinstance(why, Absent) and verb not in part.unasked]
