"""memory.csv: one row per iteration, megabytes (10^6 bytes) with three decimals."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from detscope.analyze.memory.iterations import iteration_rows
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run

FILE_NAME = "memory.csv"
_WHOLE_NUMBERS = 2  # epoch and iteration are counts, the rest are bytes
BYTES_PER_MB = 1_000_000


def write_memory_csv(run: Run) -> Path | None:
    """Write the file into a run folder; a figure that is not known is an empty cell."""
    iterations = iteration_rows(run)
    if iterations is None:
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(iterations.columns)
    for row in iterations.rows:
        counts = ["" if value is None else str(value) for value in row[:_WHOLE_NUMBERS]]
        writer.writerow([*counts, *(_megabytes(value) for value in row[_WHOLE_NUMBERS:])])
    path = run.folder / FILE_NAME
    write_text(path, text.getvalue())
    return path


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / BYTES_PER_MB:.3f}"
