"""`report.html` of a run."""

from __future__ import annotations

from pathlib import Path

from detscope.analyze.drawing import ReportData, report_data
from detscope.report.figures import plain
from detscope.report.render.page import render_page
from detscope.report.sections import make_sections
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run, load_run


def write_report(run: Run | str | Path, target: Path | None = None) -> Path:
    """Write the report of a run beside its tables, or where asked."""
    opened = run if isinstance(run, Run) else load_run(run)
    path = target or opened.folder / "report.html"
    write_text(path, report_html(opened))
    return path


def write_run_page(data: ReportData) -> Path:
    """Write the report of a run whose figures are already known."""
    path = data.run.folder / "report.html"
    write_text(path, _html(data))
    return path


def report_html(run: Run) -> str:
    """The whole page."""
    return _html(report_data(run))


def _html(data: ReportData) -> str:
    sections, absent = make_sections(data)
    summary = data.summary
    name = (summary.model.name if summary.model else None) or "run"
    verb = {"train": "training", "infer": "inference", "import": "recorded elsewhere"}.get(
        summary.verb or "", summary.verb
    )
    where = f" on {summary.device}" if summary.device else ""
    subtitle = f"{verb}{where}, {data.run.folder.name}"
    if summary.status != "ok":
        subtitle += f" · {summary.status}: {summary.reason or 'the run did not end by itself'}"
    made = "Made by detscope from this run's tables. The file needs no network and sends nothing."
    return render_page(plain(name), plain(subtitle), sections, absent, made)
