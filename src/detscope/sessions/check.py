"""`detscope data check` behind the command line: a data set in, a folder with the findings out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from detscope.data.check.dataset import check_dataset
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
    write_text(folder / "images.csv", _format_csv(images))
    write_bytes(folder / "histograms.png", _draw_picture(check))
    return check, folder


def _format_csv(rows: tuple[dict[str, Any], ...]) -> str:
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _draw_picture(check: dict[str, Any]) -> bytes:
    from PIL import Image

    from detscope.report.histograms import draw_histograms

    figures = check["figures"]
    title = f"{check['name']}: {figures['images']} images, {figures['objects']} objects"
    buffer = io.BytesIO()
    Image.fromarray(draw_histograms(figures["histograms"], title)).save(buffer, "PNG")
    return buffer.getvalue()
