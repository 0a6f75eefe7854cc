"""Where the run lies, what is in it, and the next useful command; for terminals."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from detscope.analyze.drawing import ReportData
from detscope.report.model import Fact, Facts, Section
from detscope.report.sections import SectionPart


def section(data: ReportData) -> Section:
    """Paths as short as they can be typed from here."""
    return Section("files", "Files", "", "", [Facts(list(_file_facts(data)))], brief_only=True)


def _file_facts(data: ReportData) -> Iterator[Fact]:
    summary = data.summary
    run = path_from_here(summary.run)
    yield Fact("run", run, "strong")
    for file in summary.files:
        remark = "  (open in ui.perfetto.dev)" if file.name == "trace" else ""
        yield Fact(file.name, path_from_here(file.path) + remark)
    yield Fact("next", next_command(data, shlex.quote(run)))


def next_command(data: ReportData, run: str) -> str:
    """What is worth typing now; `run` is what the shell gets for it."""
    summary = data.summary
    if data.just_ended:
        return f"detscope report {run} --open"
    if summary.level != "ops" and summary.rerun:
        return _with_operators(summary.rerun.replace(summary.run, path_from_here(summary.run)))
    return f"detscope show {run} --json"


def _with_operators(rerun: str) -> str:
    """Options of `run` stand before the script."""
    script = rerun.removeprefix("detscope run ")
    return f"{rerun} --level ops" if script == rerun else f"detscope run --level ops {script}"


def path_from_here(path: str) -> str:
    """A path relative to the current folder where it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


PART = SectionPart("files", 900, section)
