"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was recorded is kept and named."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Heard:
    """The signal that was heard, if one was."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._process = os.getpid()

    @property
    def exit_code(self) -> int | None:
        """As a shell tells it."""
        return None if self.number is None else 128 + self.number

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Unwind the stack; a forked worker, which inherits this, ends as if nobody had listened."""
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.number = number
        raise KeyboardInterrupt


@contextmanager
def heard_signals() -> Iterator[Heard]:
    """Listen, unless somebody else does or said that they are to be ignored (nohup)."""
    heard = Heard()
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    mine = [number for number in _NUMBERS if signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, heard.hear)
    try:
        yield heard
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
