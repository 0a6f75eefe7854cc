"""Everything that follows a recording: figures, page, trace, tables, pictures, TensorBoard of a closed run.

The recording is safe on disk before any of this begins: what fails or is killed here can be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from detscope.analyze.summary import RunSummary
    from detscope.report.drawing import Picture

_RECORDED_HERE = ("train", "infer", "run", "record")
_OF_SCRIPTS = ("run", "record")
_SECTIONS = {"train": "training", "infer": "inference"}


def publish_run(folder: Path, pictures: Sequence[Picture] = ()) -> RunSummary:
    """Make every view of a run that has just been closed; gives its figures."""
    from detscope.report.memory_csv import write_memory_csv
    from detscope.runs.reader import load_run

    run = load_run(folder)
    verb, settings = str(run.info.get("verb")), run.info.get("settings") or {}
    own = settings.get(_SECTIONS.get(verb, "")) or {}
    if verb in _RECORDED_HERE:
        from detscope.report.trace import write_trace

        write_trace(run)
    if pictures:
        from detscope.report.drawing import save_pictures

        save_pictures(folder / "pictures", pictures)
    if verb in _RECORDED_HERE and run.table("memory").height:
        write_memory_csv(run)
    if own.get("tensorboard"):
        from detscope.analyze.drawing import report_data
        from detscope.report.render.tensorboard import write_tensorboard

        write_tensorboard(report_data(run), pictures)
    # a script that has ended is not kept waiting for a library of pictures: `detscope report` makes them
    return publish_page(folder, charts=verb not in _OF_SCRIPTS)


def publish_page(folder: Path, charts: bool = True) -> RunSummary:
    """Write report.html and the pictures of its charts anew from what the run says now; gives its figures."""
    from detscope.analyze.drawing import report_data
    from detscope.analyze.summary import list_files
    from detscope.report.files import report_html
    from detscope.report.render.picture import has_matplotlib, write_chart_files
    from detscope.report.sections import make_sections
    from detscope.runs.atomic import write_text
    from detscope.runs.reader import load_run

    data = report_data(load_run(folder))
    write_text(folder / "report.html", report_html(data))
    if charts and has_matplotlib():
        write_chart_files(make_sections(data)[0], folder / "pictures")
    return msgspec.structs.replace(data.summary, files=list_files(folder))  # the page is one of them now
