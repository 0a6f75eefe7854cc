"""`detscope import` behind the command line: recorded files in, run folders out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from detscope.errors import InputError
from detscope.ingest.recordings import ImportResult, import_files
from detscope.report.publish import publish_run


def run_import(
    files: Sequence[Path], out: Path, name: str | None = None, tell: Callable[[str], None] = lambda _: None
) -> ImportResult:
    """Import files and make their views; a name that is missing is said before anything is read."""
    for file in files:
        if not file.exists():
            raise InputError(f"{file} does not exist", "check the path")
    imported = import_files(files, out, name, tell)
    for run in imported.runs:
        publish_run(run)
    return imported
