"""How a session ends when it does not end well: what is kept, and where the traceback is."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol

from detscope.errors import DetscopeError, InterruptedRun
from detscope.faults import fault_of
from detscope.runs.atomic import write_text


class Recording(Protocol):
    """A recorder, as far as its ending goes."""

    @property
    def begun(self) -> bool: ...
    @property
    def steps_done(self) -> int: ...
    @property
    def run(self) -> Path: ...


@contextmanager
def closing_words(recording: Recording) -> Iterator[None]:
    """Name the run that was kept; put the traceback of what was not expected into its log."""
    try:
        yield
    except KeyboardInterrupt:
        if not recording.begun:
            raise
        raise InterruptedRun(
            f"interrupted; {recording.steps_done} steps are kept in {recording.run}",
            f"detscope show {recording.run}",
        ) from None
    except SystemExit as stop:
        fault = fault_of(stop)
        if fault is None or not recording.begun:
            raise
        fault.hint = f"{recording.steps_done} steps are kept in {recording.run}; {fault.hint}"
        raise fault from None
    except Exception as error:
        if not recording.begun or (isinstance(error, DetscopeError) and error.__cause__ is None):
            raise
        raise_with_log(error, recording.run)


def raise_with_log(error: Exception, run: Path) -> NoReturn:
    """Put the traceback into the run's log, and raise whose fault it is; a bug of ours as it is."""
    log = run / "log.txt"
    try:
        write_text(log, "".join(traceback.format_exception(error)))
    except DetscopeError:  # the disk that the error may be about
        raise fault_of(error) or error from None
    fault = fault_of(error)
    if fault is None:
        error.detscope_log = log  # type: ignore[attr-defined]
        raise error
    fault.hint = f"{fault.hint}; the traceback is in {log}" if fault.hint else f"the traceback is in {log}"
    if fault is error:
        raise error
    raise fault from error
