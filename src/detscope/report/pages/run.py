"""`report.html` of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def report_of(folder: Path, summary: dict[str, Any]) -> Path:
    """Write the report of a run whose figures are already known."""
    path = folder / "report.html"
    write_text(path, _html(ReportData(load_run(folder), summary)))
    return path


def report_html(run: Run) -> str:
    """The whole page."""
    return _html(report_data(run))


def _html(data: ReportData) -> str:
    run = data.run
    sections, absent = make_sections(data)
    summary = data.summary
    model = summary.get("model")
    name = model.get("name") if isinstance(model, dict) else model
    verb = {"train": "training", "infer": "inference", "import": "recorded elsewhere"}.get(
        str(summary.get("verb")), str(summary.get("verb"))
    )
    device = summary.get("device")
    device = device.get("name") if isinstance(device, dict) else device
    where = f" on {device}" if device else ""
    subtitle = f"{verb}{where}, {run.folder.name}"
    if run.status != "ok":
        subtitle += f" · {run.status}: {summary.get('reason') or 'the run did not end by itself'}"
    made = "Made by detscope from this run's tables. The file needs no network and sends nothing."
    return render_page(plain(name or "run"), plain(subtitle), sections, absent, made)
