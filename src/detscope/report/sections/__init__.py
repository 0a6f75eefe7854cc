"""The sections of the report, from top to bottom; a new one is a file with `section` and a line here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from detscope.analyze.drawing import ReportData
from detscope.report.model import Absent, Section

ORDER = (
    "verdict",
    "step",
    "script",
    "ranks",
    "detector",
    "modules",
    "operators",
    "memory",
    "predicted",
    "loader",
    "device",
    "content",
    "accuracy",
    "method",
)


def all_sections(data: ReportData) -> tuple[list[Section], list[Absent]]:
    """Sections with data, and those without, which say why."""
    found: list[Section] = []
    absent: list[Absent] = []
    for name in ORDER:
        make: Callable[[ReportData], Section | Absent | None] = import_module(f"{__name__}.{name}").section
        part = make(data)
        if isinstance(part, Absent):
            absent.append(part)
        elif part is not None:
            found.append(part)
    return found, absent
