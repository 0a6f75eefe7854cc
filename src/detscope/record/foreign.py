"""What is somebody else's: objects, known by identity, that live as long as without us; frames, patches."""

from __future__ import annotations

import os
import signal
import weakref
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

Kind = TypeVar("Kind")
OWN = str(Path(__file__).parent)  # the room `record`


class WeakObjects(Generic[Kind]):
    """Objects in the order in which they came; one that dies is gone, and its id may be another's."""

    def __init__(
        self, objects: Iterable[Kind] = (), when_gone: Callable[[int], object] | None = None
    ) -> None:
        self._references: dict[int, weakref.ref[Kind]] = {}
        self._when_gone = when_gone
        for one in objects:
            self.add(one)

    def add(self, one: Kind) -> None:
        """Know an object."""
        key, references, when_gone = id(one), self._references, self._when_gone

        def gone(_: object) -> None:
            references.pop(key, None)
            if when_gone is not None:
                when_gone(key)

        if key not in references:
            references[key] = weakref.ref(one, gone)

    def __contains__(self, one: object) -> bool:
        return id(one) in self._references

    def __iter__(self) -> Iterator[Kind]:
        for reference in list(self._references.values()):
            one = reference()
            if one is not None:
                yield one


class UnlistedThread:
    """A thread that `threading` does not list: who waits for all threads there are does not wait for it.

    What it runs must not ask for `threading.current_thread()`, which would list it.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._running = allocate_lock()
        self._process = 0

    def start(self) -> None:
        """Begin; once."""
        self._running.acquire()
        self._process = os.getpid()
        start_new_thread(self._run_to_end, ())

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()

    def join(self) -> None:
        """Wait for its end; in a child that was forked it does not run."""
        if self._process == os.getpid():
            with self._running:
                pass


def frames_above(frame: FrameType | None, most: int | None = None) -> Iterator[FrameType]:
    """A frame, who called it, and so on."""
    while frame is not None and most != 0:
        yield frame
        frame, most = frame.f_back, None if most is None else most - 1


def drop_own_frames(error: BaseException, outer: str = "") -> None:
    """Take our frames out of an error's traceback, with those of `outer` and what called it.

    Before a bare `raise` in the outermost of them: Python adds none there.
    """
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if outer and name.startswith(outer):  # the name may have words behind it, see `own_code`
            frames = []
        elif not name.startswith(OWN):
            frames.append(trace)
        trace = trace.tb_next
    following = None
    for frame in reversed(frames):
        frame.tb_next = following
        following = frame
    error.__traceback__ = following


def raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it, which ran while our code happened to run: it is not ours."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [getattr(one, "func", getattr(one, "__func__", one)) for one in handlers if callable(one)]
    codes = {
        getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None) for one in functions
    }
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


_ABSENT = object()
# stand-ins that ended below somebody else's patch, and what they stood for: nobody puts them back
_ended: list[tuple[Any, Any]] = []


class Patches:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, stand_in: Any) -> None:
        """Replace an attribute; what it was comes back with `undo`."""
        earlier = vars(owner).get(name, _ABSENT)
        setattr(owner, name, stand_in)
        self._done.append((owner, name, stand_in, earlier))

    def take_out(self) -> None:
        """Put back for a while what nobody else has replaced since."""
        for owner, name, stand_in, earlier in reversed(self._done):
            if vars(owner).get(name) is stand_in:
                _put_back(owner, name, earlier)

    def put_in(self) -> None:
        """Replace again what was taken out and nobody else has replaced since."""
        for owner, name, stand_in, earlier in self._done:
            if vars(owner).get(name, _ABSENT) is earlier:
                setattr(owner, name, stand_in)

    def undo(self) -> None:
        """Put everything back, last first; what somebody else has replaced since stays theirs."""
        while self._done:
            owner, name, stand_in, earlier = self._done.pop()
            if vars(owner).get(name) is not stand_in:
                _ended.append((stand_in, earlier))
                continue
            while found := [before for ended, before in _ended if ended is earlier]:
                earlier = found[0]
            _put_back(owner, name, earlier)


def _put_back(owner: Any, name: str, earlier: Any) -> None:
    if earlier is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, earlier)
