"""Times transforms where they run: in a loader's worker, or in the loop that loads by itself.

Only while a batch is made are the classes of known transforms timed, and only objects that are known; the
data set, its lists and its transforms stay as they are, and their classes are put back after every batch.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter_ns
from types import FunctionType
from typing import Any, NamedTuple

from detscope.record.transforms.discovery import find_transforms, list_attributes
from detscope.record.transforms.looks import CodeLooks, LooksInside

_ABSENT = object()
# what decodes, as "module:name": heard where the module is loaded and the function is called through it
_DECODERS = (
    "PIL.Image:open",
    "PIL.Image:Image.convert",
    "PIL.ImageFile:ImageFile.load",
    "cv2:imread",
    "cv2:imdecode",
    "torchvision.io:read_image",
    "torchvision.io:decode_image",
    "torchvision.io:decode_jpeg",
    "torchvision.io:decode_png",
)
_LAZY = "PIL.ImageFile:ImageFile.load"  # is asked again and again, and decodes once
_NO_DECODING_IN_TRANSFORMS = "PIL.Image:Image.convert"


class PartWork(NamedTuple):
    """What was done under one name for one batch; travels with it."""

    name: str
    kind: str  # transform, decode, region, collate
    origin: str | None
    inside: str | None
    own_ns: int
    total_ns: int
    calls: int
    applied: int  # calls that gave another image than they took


class BatchWork(NamedTuple):
    """The work of one batch by name; `looks` by the part that ran and the place that was seen."""

    parts: tuple[PartWork, ...]
    looks: LooksInside


class TimedPart:
    """A name that time is spent under."""

    __slots__ = ("applied", "calls", "has_parts", "inside", "kind", "name", "origin", "own_ns", "total_ns")

    def __init__(
        self, name: str, kind: str, origin: str | None = None, inside: str | None = None, parts: bool = False
    ) -> None:
        self.name, self.kind, self.origin, self.inside, self.has_parts = name, kind, origin, inside, parts
        self.own_ns = self.total_ns = self.calls = self.applied = 0

    def take_work(self) -> PartWork:
        """What was done since it was asked last."""
        counts = (self.own_ns, self.total_ns, self.calls, self.applied)
        self.own_ns = self.total_ns = self.calls = self.applied = 0
        return PartWork(self.name, self.kind, self.origin, self.inside, *counts)


class _Stand(NamedTuple):
    """What stands for a class's or module's own while a batch is made."""

    owner: Any
    name: str
    plain: Any
    earlier: Any  # _ABSENT: inherited
    stand_in: Any


class _Pipeline(NamedTuple):
    """What is known of a holder of transforms."""

    holder: Any  # a weak reference
    held: tuple[int, ...]  # its attributes when it was looked at
    classes: tuple[type, ...]


class TransformTimer:
    """Who does what for a batch, in one thread of this process."""

    def __init__(self) -> None:
        self.thread: int | None = None  # in which a batch is being made
        self.open: list[TimedPart] = []  # innermost last
        self._inner_ns = [0]  # spent in parts of the open ones
        self._parts: dict[int, TimedPart] = {}  # by the transform's id
        self._alive: dict[int, Any] = {}
        self._named: dict[tuple[str, str], TimedPart] = {}  # decoders and regions
        self._pipelines: dict[int, _Pipeline] = {}
        self._stands: dict[tuple[int, str], _Stand] = {}
        self._put: list[_Stand] = []
        self.looks = CodeLooks(self._find_place)

    # ---- windows

    @contextmanager
    def timing(self, *holders: Any) -> Iterator[bool]:
        """Time the transforms of these data sets or collate functions in the block, in this thread.

        Whether that is done: one thread is timed at a time.
        """
        if self.thread is not None:
            yield self.thread == get_ident()
            return
        self._open_window(holders)
        try:
            yield True
        finally:
            self.thread = None
            self.open.clear()
            self._inner_ns = [0]
            self._put_back()

    def _open_window(self, holders: tuple[Any, ...]) -> None:
        try:
            for holder in holders:
                for kind in self._know_pipeline(holder).classes:
                    self._put_stand(kind, "__call__", self._time_transform)
            for target in _DECODERS:
                module, _, path = target.partition(":")
                if module in sys.modules:
                    *within, name = path.split(".")
                    owner: Any = sys.modules[module]
                    for step in within:
                        owner = vars(owner)[step]
                    self._put_stand(owner, name, functools.partial(self._time_decoder, target))
            self.looks.keep_looking()
        except Exception:  # strangers' classes that cannot be looked at: they are not timed
            self._put_back()
        self.thread = get_ident()

    def _put_stand(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        plain = getattr(owner, name, None)
        if plain is None:
            return
        key = (id(owner), name)
        known = self._stands.get(key)
        if known is None or known.plain is not plain or known.owner is not owner:
            known = self._stands[key] = _Stand(
                owner, name, plain, vars(owner).get(name, _ABSENT), make(plain)
            )
        try:
            setattr(owner, name, known.stand_in)
        except (TypeError, AttributeError):  # a class that cannot be changed
            return
        self._put.append(known)

    def _put_back(self) -> None:
        while self._put:
            done = self._put.pop()
            if vars(done.owner).get(done.name) is not done.stand_in:
                continue  # replaced by somebody else meanwhile
            if done.earlier is _ABSENT:
                delattr(done.owner, done.name)
            else:
                setattr(done.owner, done.name, done.earlier)

    # ---- what is known

    def _know_pipeline(self, holder: Any) -> _Pipeline:
        """Its transforms; looked for again when it holds something else than before."""
        held = tuple(map(id, list_attributes(holder).values()))
        known = self._pipelines.get(id(holder))
        if known is not None and known.held == held and known.holder() is holder:
            return known
        found = find_transforms(holder)
        for one in found:
            key = id(one.transform)
            try:
                self._alive[key] = weakref.ref(one.transform, functools.partial(self._forget, key))
            except TypeError:  # nobody would say when it is gone
                continue
            self._parts[key] = TimedPart(one.name, "transform", one.origin, one.inside, one.has_parts)
        classes = tuple(
            {type(one.transform): None for one in found if id(one.transform) in self._parts},
        )
        try:
            pipeline = _Pipeline(weakref.ref(holder), held, classes)
            self._pipelines[id(holder)] = pipeline
        except TypeError:
            pipeline = _Pipeline(lambda: None, held, classes)
        return pipeline

    def _forget(self, key: int, reference: Any) -> None:
        if self._alive.get(key) is reference:
            self._alive.pop(key, None)
            self._parts.pop(key, None)

    # ---- stand-ins

    def _time_transform(self, plain: Any) -> Any:
        parts, open_parts = self._parts, self.open

        @functools.wraps(plain)
        def call_timed(transform: Any, *args: Any, **kwargs: Any) -> Any:
            part = parts.get(id(transform))
            if part is None or get_ident() != self.thread or (open_parts and open_parts[-1] is part):
                return plain(transform, *args, **kwargs)
            before = find_image(kwargs or args)
            begun_ns = self.enter(part)
            try:
                result = plain(transform, *args, **kwargs)
            finally:
                self.leave(part, begun_ns)
            if find_image(result) is not before:
                part.applied += 1
            return result

        return call_timed

    def _time_decoder(self, target: str, plain: Any) -> Any:
        part = self._named.setdefault(("decode", target), TimedPart(target.replace(":", "."), "decode"))
        open_parts = self.open
        lazy, only_outside = target == _LAZY, target == _NO_DECODING_IN_TRANSFORMS

        def is_counted(args: tuple[Any, ...]) -> bool:
            if get_ident() != self.thread or (open_parts and open_parts[-1].kind == "decode"):
                return False
            if lazy:
                return bool(list_attributes(args[0]).get("tile"))
            return not (only_outside and any(one.kind == "transform" for one in open_parts))

        def decode_timed(*args: Any, **kwargs: Any) -> Any:
            if not is_counted(args):
                return plain(*args, **kwargs)
            begun_ns = self.enter(part)
            try:
                return plain(*args, **kwargs)
            finally:
                self.leave(part, begun_ns)

        return functools.wraps(plain)(decode_timed) if isinstance(plain, FunctionType) else decode_timed

    # ---- time

    def enter(self, part: TimedPart) -> int:
        """Something begins; when it did."""
        self.open.append(part)
        self._inner_ns.append(0)
        return perf_counter_ns()

    def leave(self, part: TimedPart, begun_ns: int) -> None:
        """It has ended; its own time is without its parts'."""
        spent_ns = perf_counter_ns() - begun_ns
        open_parts, inner_ns = self.open, self._inner_ns
        if not open_parts or open_parts[-1] is not part:  # the window has closed meanwhile
            return
        open_parts.pop()
        part.own_ns += spent_ns - inner_ns.pop()
        inner_ns[-1] += spent_ns
        if part not in open_parts:
            part.total_ns += spent_ns
        part.calls += 1

    @contextmanager
    def region(self, name: str, kind: str = "region") -> Iterator[None]:
        """Time a block that has a name, where transforms are timed."""
        if self.thread != get_ident():
            yield
            return
        part = self._named.setdefault((kind, name), TimedPart(name, kind, parts=True))
        begun_ns = self.enter(part)
        try:
            yield
        finally:
            self.leave(part, begun_ns)

    def take_work(self) -> BatchWork:
        """What was done since it was asked last."""
        every = [*self._parts.values(), *self._named.values()]
        return BatchWork(tuple(part.take_work() for part in every if part.calls), self.looks.take_looks())

    def _find_place(self) -> tuple[int, TimedPart | None] | None:
        """The thread to look at and the part that runs; None where that has no parts. Asked by a thread."""
        thread = self.thread
        part = self.open[-1] if self.open else None
        return None if thread is None or (part is not None and not part.has_parts) else (thread, part)


def find_image(value: Any) -> Any:
    """The image among what a transform takes or gives: that of a dict, else what comes first."""
    for _ in range(3):
        kind = type(value)
        if kind is dict:
            value = value.get("image", value.get("img", value))
            if value.__class__ is dict:
                return next(iter(value.values()), None)
        elif kind is tuple or kind is list:
            if not value:
                return None
            value = value[0]
        else:
            break
    return value


_timer: tuple[int, TransformTimer] | None = None


def find_timer() -> TransformTimer:
    """The timer of this process; a fork begins one of its own, since its threads are not there."""
    global _timer
    if _timer is None or _timer[0] != os.getpid():
        _timer = (os.getpid(), TransformTimer())
    return _timer[1]


def end_timing() -> None:
    """Look no more in this process; a later batch begins anew."""
    global _timer
    if _timer is not None and _timer[0] == os.getpid():
        _timer[1].looks.stop_looking()
    _timer = None
