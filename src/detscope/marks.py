"""Marks in code: `phase` and `region` say what the code is doing, to whoever listens.

This file is below everything else and knows nobody. Loops, data sets and user code mark
themselves; a recorder (or, inside a loader worker, a small collector) installs itself as the
process's listener. Without a listener a mark costs one function call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol


class Listener(Protocol):
    """Something that wants to know about marks: a recorder or a worker's collector."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """The block belongs to the phase `name` of the current step."""

    def region(self, name: str) -> AbstractContextManager[None]:
        """The block is a named region inside whatever is going on."""


_listener: Listener | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def phase(name: str) -> AbstractContextManager[None]:
    """Mark a block as a phase of the step ("transfer", "forward", ...)."""
    return _NOTHING if _listener is None else _listener.phase(name)


def region(name: str) -> AbstractContextManager[None]:
    """Mark a block as a named region: `with detscope.region("my nms"): ...`."""
    return _NOTHING if _listener is None else _listener.region(name)


def current_listener() -> Listener | None:
    """Who listens in this process now."""
    return _listener


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Install `listener` for the block and put the earlier one back afterwards."""
    global _listener
    earlier, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = earlier
