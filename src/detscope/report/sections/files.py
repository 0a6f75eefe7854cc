"""Where the run lies, what is in it, and the next useful command; for terminals."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from detscope.analyze.drawing import ReportData
from detscope.analyze.summary import RunSummary
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
    return look_closer(summary) or f"detscope show {run} --json"


def look_closer(summary: RunSummary) -> str:
    """The run again with operators; nothing where it had them, or cannot be repeated."""
    if summary.level == "ops" or not summary.rerun:
        return ""
    rerun = summary.rerun.replace(summary.run, path_from_here(summary.run))
    script = rerun.removeprefix("detscope run ")  # its options stand before the script
    return f"{rerun} --level ops" if script == rerun else f"detscope run --level ops {script}"


def path_from_here(path: str) -> str:
    """A path relative to the current folder where it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


PART = SectionPart("files", 900, section)
