"""How a session ends when it does not end well: what is kept, and where the traceback is."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from detscope.errors import DetscopeError, InterruptedRun
from detscope.runs.atomic import write_text


class Recording(Protocol):
    """A recorder, as far as its ending goes."""

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
        raise InterruptedRun(
            f"interrupted; {recording.steps_done} steps are kept in {recording.run}",
            f"detscope show {recording.run}",
        ) from None
    except DetscopeError:
        raise
    except Exception as error:
        log = recording.run / "log.txt"
        write_text(log, "".join(traceback.format_exception(error)))
        error.detscope_log = log  # type: ignore[attr-defined]
        raise
