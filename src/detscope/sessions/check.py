"""`detscope data check` behind the command line: a data set in, a folder with the findings out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from detscope.data.check import check_dataset
from detscope.report.render.picture import has_matplotlib
from detscope.runs.atomic import write_bytes, write_text
from detscope.runs.folder import create_run_folder


def run_check(
    name: str, root: str, out: Path, progress: Callable[[str, int, int | None], None] | None = None
) -> tuple[dict[str, Any], Path]:
    """Check a data set and write check.json, images.csv and histograms.png into a folder of its own."""
    report = check_dataset(name, root, progress=progress)
    check = {**asdict(report), "errors": report.errors}
    images = check.pop("images")
    folder = create_run_folder(out, "check", report.name)
    (folder / "parts").rmdir()
    write_text(folder / "check.json", json.dumps(check, indent=1))
    table = io.StringIO()
    if images:
        writer = csv.DictWriter(table, list(images[0]))
        writer.writeheader()
        writer.writerows(images)
    write_text(folder / "images.csv", table.getvalue())
    if has_matplotlib():
        write_bytes(folder / "histograms.png", _draw_picture(check))
    return check, folder


def _draw_picture(check: dict[str, Any]) -> bytes:
    from detscope.report.checks import DataCheck, histogram_charts
    from detscope.report.render.picture import draw_charts

    figures = check["figures"]
    title = f"{check['name']}: {figures['images']} images, {figures['objects']} objects"
    return draw_charts(histogram_charts(msgspec.convert(check, DataCheck, strict=False)), title=title)
