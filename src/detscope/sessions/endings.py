"""How a session ends when it does not end well: what is kept, and where the traceback is."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from detscope.errors import DetscopeError, InterruptedRun, MachineError
from detscope.faults import classify_fault, one_line
from detscope.runs.atomic import write_text

if TYPE_CHECKING:
    from detscope.record.recorder import Recorder
    from detscope.runs.writer import RunWriter


@contextmanager
def name_kept_run(recorder: Recorder) -> Iterator[None]:
    """Name the run that was kept; put the traceback of what was not expected into its log."""
    try:
        yield
    except KeyboardInterrupt:
        if not recorder.begun:
            raise
        raise InterruptedRun(
            f"interrupted; {recorder.steps_done} steps are kept in {recorder.run}",
            f"detscope show {recorder.run}",
        ) from None
    except SystemExit as stop:
        fault = classify_fault(stop)
        if fault is None or not recorder.begun:
            raise
        fault.hint = f"{recorder.steps_done} steps are kept in {recorder.run}; {fault.hint}"
        raise fault from None
    except Exception as error:
        if not recorder.begun or _tells_enough(error):
            raise
        raise_with_log(error, recorder.run)


@contextmanager
def show_out_of_memory(recorder: Recorder) -> Iterator[None]:
    """With blocks recorded, a run that ran out of memory is a result: views are made and it is shown."""
    try:
        yield
    except MachineError:
        if not recorder.begun or not _holds_account(recorder.run):
            raise


def _holds_account(folder: Path) -> bool:
    from detscope.runs.reader import load_run

    try:
        run = load_run(folder)
        return run.status.startswith("oom_") and run.table("memory").height > 0
    except DetscopeError:  # the run is gone or damaged: what ended it is what is said
        return False


@contextmanager
def close_failed(writer: RunWriter) -> Iterator[None]:
    """Close an evaluation's run as failed, with the reason, when what happens inside does not end well."""
    try:
        yield
    except KeyboardInterrupt:
        _close_run(writer, "partial", "interrupted")
        words = f"interrupted; {writer.folder} holds no accuracy yet"
        raise InterruptedRun(words, "evaluate again") from None
    except BaseException as error:
        _close_run(writer, "failed", one_line(error) or type(error).__name__)
        if isinstance(error, Exception) and not _tells_enough(error):
            raise_with_log(error, writer.folder)
        raise


def _close_run(writer: RunWriter, status: str, reason: str) -> None:
    with suppress(DetscopeError):  # never hide what happened behind a disk that is full
        writer.close_run(status, reason)


def _tells_enough(error: Exception) -> bool:
    return isinstance(error, DetscopeError) and error.__cause__ is None


def raise_with_log(error: Exception, run: Path) -> NoReturn:
    """Put the traceback into the run's log, and raise whose fault it is; a bug of ours as it is."""
    log = run / "log.txt"
    try:
        write_text(log, "".join(traceback.format_exception(error)))
    except DetscopeError:  # the disk that the error may be about
        raise classify_fault(error) or error from None
    fault = classify_fault(error)
    if fault is None:
        error.detscope_log = log  # type: ignore[attr-defined]
        raise error
    fault.hint = f"{fault.hint}; the traceback is in {log}" if fault.hint else f"the traceback is in {log}"
    if fault is error:
        raise error
    raise fault from error
