"""Ctrl-C, SIGTERM and SIGHUP while training: the step under way is finished to keep a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from detscope.machine.interrupts import expect_interrupt, interrupt

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class StopRequest:
    """Hears the first signal as a wish; a second one, or one outside of the steps, stops at once.

    Loader workers are forked while it listens and inherit it: a terminal's Ctrl-C reaches them too, and
    they go on until the loop has what it waits for.
    """

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that was heard
        self.in_steps = False
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # signals are heard there only
            expect_interrupt()
            wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._hear) for number in wanted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            if number != signal.SIGINT:  # SIGTERM is how the loop ends its workers
                raise SystemExit(128 + number)
            return
        if self.asked is not None or not self.in_steps:
            self.asked = number
            interrupt()
            return
        self.asked = number
        # print() may be in the middle of a line of its own
        os.write(2, b"\nstopping after this step to keep a checkpoint; once more stops at once\n")
