"""A run's report as a file: HTML, or the same sections as Markdown, JSON or CSV."""

from __future__ import annotations

import json
from pathlib import Path

from detscope.analyze.drawing import ReportData, report_data
from detscope.report.figures import plain
from detscope.report.model import Section
from detscope.report.render.csv import sections_csv
from detscope.report.render.markdown import sections_markdown, sentence
from detscope.report.render.page import render_page
from detscope.report.sections import make_sections
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run, load_run
from detscope.runs.standard_json import as_standard_json


def write_report(run: Run | str | Path, form: str = "html", target: Path | None = None) -> Path:
    """Write the report beside the run's tables, or where asked; returns where it is."""
    data = report_data(run if isinstance(run, Run) else load_run(run))
    makers = {"html": report_html, "md": _markdown, "json": _json, "csv": _csv}
    path = target or data.run.folder / f"report.{form}"
    write_text(path, makers[form](data))
    return path


def report_html(data: ReportData) -> str:
    """The whole page."""
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


def _sections(data: ReportData) -> list[Section]:
    return make_sections(data)[0]


def _markdown(data: ReportData) -> str:
    return f"# {sentence(data.run.folder.name)}\n\n" + sections_markdown(_sections(data))


def _json(data: ReportData) -> str:
    return json.dumps(as_standard_json(data.summary), indent=2, allow_nan=False) + "\n"


def _csv(data: ReportData) -> str:
    return sections_csv(_sections(data))
