"""A recording that a trainer begins and ends: the same as `detscope.watch()` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detscope.sessions.run.watch import Watch, find_watch, watch


class TrainerRecording:
    """Begins with a trainer and ends with it; where `detscope run` listens already, that goes on."""

    def __init__(self, **options: Any) -> None:
        self._options = options  # those of `detscope.watch()`
        self._own: Watch | None = None
        self._begun_by: object = None
        self.run: Path | None = None  # once it has ended

    def begin(self, by: object) -> None:
        """Listen, unless somebody does; who began is the one that ends."""
        if find_watch() is None:
            started = watch(**self._options)
            if find_watch() is started:  # not in a worker
                self._own, self._begun_by = started, by

    def end(self, by: object = None, error: BaseException | None = None) -> None:
        """Write the run and its report, if this is who began, or nobody in particular."""
        if self._own is not None and by in (None, self._begun_by):
            self.run = self._own.stop(error)
            self._own = None
