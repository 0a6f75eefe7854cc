"""What is made of a memory account once the run is safe on disk; and how running out of memory ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from detscope.errors import DetscopeError, MachineError
from detscope.runs.reader import load_run


class Recording(Protocol):
    """A recorder, as far as its run goes."""

    @property
    def begun(self) -> bool: ...
    @property
    def run(self) -> Path: ...


def write_memory_views(folder: Path) -> list[Path]:
    """memory.csv and the pictures; nothing where no blocks were recorded."""
    run = load_run(folder)
    if not run.table("memory").height:  # before what draws is imported: a script waits for its end
        return []
    from detscope.analyze.memory.iterations import iteration_rows
    from detscope.analyze.memory.timeline import peak_tree, step_timeline
    from detscope.report.memory_csv import write_memory_csv
    from detscope.report.memory_pictures import write_memory_pictures

    iterations = iteration_rows(run)
    if iterations is None:
        return []
    pictures = write_memory_pictures(folder, run.info, step_timeline(run), peak_tree(run))
    return [write_memory_csv(folder, iterations), *pictures]


@contextmanager
def running_out_is_an_answer(recording: Recording) -> Iterator[None]:
    """With blocks recorded, a run that ran out of memory is a result: views are made and it is shown."""
    try:
        yield
    except MachineError:
        if not recording.begun or not _holds_an_account(recording.run):
            raise


def _holds_an_account(folder: Path) -> bool:
    try:
        run = load_run(folder)
        return run.status.startswith("oom_") and run.table("memory").height > 0
    except DetscopeError:  # the run is gone or damaged: what ended it is what is said
        return False
