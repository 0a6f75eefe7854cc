"""Tracebacks as they would be without us: our own frames are taken out. Needs no torch."""

from __future__ import annotations

import re

from detscope.record.foreign import OWN, drop_own_frames


class ScriptStopped(SystemExit):
    """`--max-steps` is reached: `finally` blocks and `atexit` handlers run, threads end in silence."""

    def __init__(self) -> None:
        super().__init__(0)


# three lines at most per frame: place, source, markers under it
_IN_TEXT = re.compile(rf'  File "{re.escape(OWN)}[^\n]*\n(?:    [^\n]*\n)*')


def clean_error(error: BaseException, outer: str) -> None:
    """Take our frames out of an error and of those it came from, with those of `outer` and what called it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        drop_own_frames(one, outer)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def forget_own_frames(error: BaseException) -> None:
    """Take our frames out of an error's message, where a worker's traceback stands in it."""
    if len(error.args) == 1 and isinstance(error.args[0], str) and OWN in error.args[0]:
        kind = type(error.args[0])  # a KeyError's text is of a class of its own
        error.args = (kind(_IN_TEXT.sub("", error.args[0])),)
