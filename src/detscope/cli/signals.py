"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was recorded is kept and named.

However many of them come, they end it once, and its last words are not interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from detscope.machine.interrupts import expect_interrupt, interrupt_once

_NUMBERS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class ReceivedSignal:
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
        interrupt_once()


@contextmanager
def heard_signals() -> Iterator[ReceivedSignal]:
    """Listen, unless somebody else does or said that they are to be ignored (nohup)."""
    heard = ReceivedSignal()
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    mine = [number for number in _NUMBERS if signal.getsignal(number) is signal.SIG_DFL]
    expect_interrupt()
    for number in mine:
        signal.signal(number, heard.hear)
    try:
        yield heard
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Ctrl-C in a process of ours: from its last words on nobody listens.

    What torch and others do at exit would print a traceback for each one more. Whoever leaves this without
    ending the process gets Python's own handler back.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored in the background
        yield
        return
    process = os.getpid()

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked worker
            signal.default_int_handler(number, frame)
        interrupt_once()

    expect_interrupt()
    signal.signal(signal.SIGINT, hear)
    listens_then: Any = signal.default_int_handler
    try:
        yield
    except SystemExit:
        listens_then = signal.SIG_IGN
        raise
    except KeyboardInterrupt:  # it came after the last words
        listens_then = signal.SIG_IGN
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGINT, listens_then)
