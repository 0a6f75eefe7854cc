"""Ctrl-C that comes again and again, as from a key that is held down: it interrupts once."""

from __future__ import annotations

from time import monotonic

_SAME_REQUEST_S = 1.0  # after a pause of this length another one is meant, also for what takes long to end


class _LastRequest:
    """When the process was last asked to end, by the clock that never goes back."""

    asked_s: float | None = None


def interrupt_once() -> None:
    """Raise KeyboardInterrupt, unless one is under way: it would strike what the first one is ending."""
    before_s, _LastRequest.asked_s = _LastRequest.asked_s, monotonic()
    if before_s is None or _LastRequest.asked_s - before_s > _SAME_REQUEST_S:
        raise KeyboardInterrupt


def expect_interrupt() -> None:
    """The next one is a first one: nothing is being ended."""
    _LastRequest.asked_s = None
