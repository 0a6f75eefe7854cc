"""What can be asked about recorded runs: arguments of tools, described by their classes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from detscope.agents.bounds import MOST_ROWS
from detscope.analyze.figure import Figure

Offset = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)] | None


class Question(Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of a tool; one that it does not know is an error."""


class PageQuestion(Question, frozen=True, kw_only=True):
    """A question whose answer has rows."""

    offset: Offset = 0  # rows to skip
    limit: Limit = None  # rows at most; else as many as have room


class RunsQuestion(PageQuestion, frozen=True, kw_only=True):
    """Recorded runs, the newest first: id, model, ms per step, images/s, status."""

    model: str | None = None  # only models whose name has it
    device: str | None = None  # only runs on it
    since: str | None = None  # only runs from this day on: 2026-11-15
    sort: str = "time"  # time, ms, model, device, status or verb


class SummaryQuestion(Question, frozen=True, kw_only=True):
    """What limits a run: verdict, step, phases, stages, and which findings and sections it has."""

    run: str = "latest"  # its id, or the beginning or end of its name


class FindingsQuestion(PageQuestion, frozen=True, kw_only=True):
    """What a run could change: claim, file and line, evidence, cost, change, the command that verifies it."""

    run: str = "latest"  # its id, or the beginning or end of its name
    id: str | None = None  # only the finding with it
    rule: str | None = None  # only findings of it


class SectionQuestion(PageQuestion, frozen=True, kw_only=True):
    """One section of a run's report as tables: step, modules, operators, memory, loader, device, ..."""

    section: str  # its name, as summary and definitions list them: step, modules, memory, ...
    run: str = "latest"  # its id, or the beginning or end of its name


class CompareQuestion(PageQuestion, frozen=True, kw_only=True):
    """Two runs: settings that differ, what changed by how much, with 95 % intervals."""

    base: str  # the run before: its id, or the beginning or end of its name
    other: str  # the run after
    figures: str = ""  # only figures whose names begin with it: phase. stage. module. operator. memory. ...


class DefinitionsQuestion(PageQuestion, frozen=True, kw_only=True):
    """What a figure means, searched by word, and the names of all sections."""

    name: str = ""  # only definitions that have this word in name or text; else all
