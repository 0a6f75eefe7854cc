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
    rerun = summary.rerun
    if data.just_ended:
        yield Fact("next", f"detscope report {shlex.quote(run)} --open")
    elif summary.level != "ops" and rerun:
        yield Fact("next", _with_operators(rerun.replace(summary.run, run)))
    else:
        yield Fact("next", f"detscope show {shlex.quote(run)} --json")


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
