"""Spans of torch.profiler that are open while one of our sessions ends or begins.

torch writes the end of a span to where the session in which it began kept it. With that session gone and
another one running it writes into freed memory, and the process dies at some later moment. `Optimizer.step`
is such a span around its own hooks, and a script may have one around its whole loop. So all of them end
before a session does, and begin anew behind it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.compiler import is_compiling

from detscope.record.patches import Patches

_functions = torch.ops.profiler

IN_COMPILED_CODE = (
    "steps end inside of a function that torch.compile has compiled and that stays open: operators and memory"
    " by blocks are not recorded"
)


def inside_compiled_code() -> bool:
    """Whether a function that torch.compile made is running, around which torch has a span of its own."""
    frame = sys._getframe(1) if "torch._dynamo" in sys.modules else None
    while frame is not None:
        if any(name.startswith(("__compiled_fn", "__resume_at")) for name in frame.f_code.co_names):
            return True
        frame = frame.f_back
    return False


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.open: list[record_function] = []


class OpenSpans:
    """Knows the spans of `torch.profiler.record_function` that are open, from `watch` on."""

    def __init__(self, *close_own: Callable[[], None]) -> None:
        self._close_own = close_own  # end spans of ours for good
        self._here = _OfThread()
        self._patches = Patches()
        self._watching = False

    def watch(self) -> None:
        """Before the first session: what is open by then was heard by none."""
        if self._watching:
            return
        self._watching = True
        here, plain_enter, plain_exit = self._here, record_function.__enter__, record_function.__exit__

        @functools.wraps(plain_enter)
        def enter(span: record_function) -> Any:
            entered = plain_enter(span)  # type: ignore[no-untyped-call]
            if not is_compiling():
                here.open.append(span)
            return entered

        @functools.wraps(plain_exit)
        def leave(span: record_function, *error: Any) -> Any:
            if not is_compiling():
                here.open = [one for one in here.open if one is not span]
            return plain_exit(span, *error)

        self._patches.put(record_function, "__enter__", enter)
        self._patches.put(record_function, "__exit__", leave)

    def forget(self) -> None:
        """After the last session."""
        self._patches.undo()
        self._watching = False

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Around the end or the beginning of a session."""
        for close in self._close_own:
            close()
        spans = [one for one in self._here.open if one.run_callbacks_on_exit]
        with torch._C.DisableTorchFunctionSubclass():
            for span in reversed(spans):
                _functions._record_function_exit._RecordFunction(span.record)
        try:
            yield
        finally:
            for span in spans:
                span.record = _functions._record_function_enter_new(span.name, span.args)
