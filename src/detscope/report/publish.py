"""Everything that follows a recording: figures, page, trace, tables, pictures, TensorBoard of a closed run.

The recording is safe on disk before any of this begins: what fails or is killed here can be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detscope.analyze.summary import RunSummary
    from detscope.report.drawing import Picture
    from detscope.runs.reader import Run

_RECORDED_HERE = ("train", "infer", "run", "record")
_SECTIONS = {"train": "training", "infer": "inference"}


def publish_run(folder: Path, pictures: Sequence[Picture] = ()) -> RunSummary:
    """Make every view of a run that has just been closed; gives its figures."""
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
    if verb in _RECORDED_HERE:
        _write_memory_views(run)
    trains_for_real = (settings.get("evaluation") or {}).get("every") is not None
    if verb == "train" and (trains_for_real or (own.get("num_epochs") or 1) > 1):
        from detscope.report.curve import write_curve

        write_curve(run)
    if own.get("tensorboard"):
        from detscope.analyze.summary import summarize
        from detscope.report.render.tensorboard import write_tensorboard

        write_tensorboard(folder, summarize(folder), pictures)
    return publish_page(folder)


def publish_page(folder: Path) -> RunSummary:
    """Write report.html anew from what the run says now; gives its figures."""
    from detscope.analyze.summary import summarize
    from detscope.report.pages.run import report_of

    summary = summarize(folder)
    report_of(folder, summary)
    return summary


def _write_memory_views(run: Run) -> None:
    """memory.csv and the pictures of memory; nothing where no blocks were recorded."""
    if not run.table("memory").height:  # before what draws is imported: a script waits for its end
        return
    from detscope.analyze.memory.iterations import iteration_rows
    from detscope.analyze.memory.timeline import peak_tree, step_timeline
    from detscope.report.memory_csv import write_memory_csv
    from detscope.report.memory_pictures import write_memory_pictures

    iterations = iteration_rows(run)
    if iterations is not None:
        write_memory_pictures(run.folder, run.info, step_timeline(run), peak_tree(run))
        write_memory_csv(run.folder, iterations)
