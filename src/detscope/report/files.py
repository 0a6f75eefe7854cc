"""A run's report as a file: HTML, or the same sections as Markdown, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

from detscope.analyze.drawing import report_data
from detscope.report.model import Section, Table
from detscope.report.pages.run import report_html
from detscope.report.render.markdown import sections_markdown, sentence
from detscope.report.sections import make_sections
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run, load_run
from detscope.runs.standard_json import as_standard_json


def write_as(run: Run | str | Path, form: str = "html", target: Path | None = None) -> Path:
    """Write the report in one of the forms; returns where it is."""
    opened = run if isinstance(run, Run) else load_run(run)
    makers = {"html": report_html, "md": _markdown, "json": _json, "csv": _csv}
    path = target or opened.folder / f"report.{form}"
    write_text(path, makers[form](opened))
    return path


def _sections(run: Run) -> list[Section]:
    return make_sections(report_data(run))[0]


def _json(run: Run) -> str:
    return json.dumps(as_standard_json(report_data(run).summary), indent=2, allow_nan=False) + "\n"


def _csv(run: Run) -> str:
    """All tables of the report beneath each other: section, table, row, column, value."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("section", "table", "row", "column", "value"))
    for part, block in _tables(run):
        for row in block.rows:
            label = "" if row[0] is None else str(row[0])
            for column, value in zip(block.columns[1:], row[1:], strict=True):
                writer.writerow((part.id, block.id, label, column.title, "" if value is None else value))
    return text.getvalue()


def _tables(run: Run) -> Iterator[tuple[Section, Table]]:
    for part in _sections(run):
        for block in part.blocks:
            if isinstance(block, Table):
                yield part, block


def _markdown(run: Run) -> str:
    return f"# {sentence(run.folder.name)}\n\n" + sections_markdown(_sections(run))
