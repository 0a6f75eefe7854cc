"""Times transforms where they run: in a loader's worker, or in the loop that loads by itself.

The data set, its lists and its transforms stay as they are: a stand-in for the call of their class times
objects that are known, while a batch is made, and answers plainly at all other times. Putting it in place
and back for each batch would cost more than the timing: Python forgets what it knows of a changed class. In
a worker it stays, in the loop's own process it is put back when the recording ends.

Not every batch is timed (`TimingBudget`); where few are, the stand-ins are there for those alone. What timing
takes is clocked beside it and is nobody's time.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

from detscope.record.code_lines import tell_function
from detscope.record.foreign import Patches
from detscope.record.own_code import pass_over_in_warnings
from detscope.record.transforms.budget import TimingBudget
from detscope.record.transforms.discovery import find_transforms, list_attributes
from detscope.record.transforms.looks import CodeLooks, LooksInside

# what decodes: heard where the module is loaded and the function is called through it
_DECODERS = (
    ("PIL.Image", "open"),
    ("PIL.Image", "Image.convert"),
    ("PIL.ImageFile", "ImageFile.load"),
    ("cv2", "imread"),
    ("cv2", "imdecode"),
    ("torchvision.io", "read_image"),
    ("torchvision.io", "decode_image"),
    ("torchvision.io", "decode_jpeg"),
    ("torchvision.io", "decode_png"),
)
_LAZY = ("PIL.ImageFile", "ImageFile.load")  # is asked again and again, and decodes once
_ALSO_A_TRANSFORM = ("PIL.Image", "Image.convert")  # counts outside of transforms only


# models are made of torch's classes, and compilers look at them; our own data set is a wrapper
_NOT_TIMED = ("torch.", "detscope.record.")
_NESTED = 4  # lists and dicts around an image
_NOT_LOOKED_FOR = object()  # an image
_FEW = 8  # one batch in more than these is timed
_MOST_PER_CALL_NS = 20_000  # that timing takes; where it took longer, the machine did something else


class PartWork(NamedTuple):
    """What was done under one name for one batch; travels with it."""

    name: str
    kind: str  # transform, dataset, decode, region, collate
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
    stands_for: int = 1  # batches, of which this one was drawn
    paid_ns: int = 0  # for timing, in the time of the batch and in that of no part


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


class _Pipeline(NamedTuple):
    """What is known of a holder of transforms."""

    holder: Any  # a weak reference
    held: tuple[int, ...]  # its attributes when it was looked at


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
        self._patches = Patches()
        self._standing: set[tuple[str, str] | type] = set()  # classes and decoders that are stood in for
        self._taken_out = False
        self._paid_ns = 0  # for timing parts of this batch
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.looks = CodeLooks(self._find_place)
        self._budget = TimingBudget()
        self._stands_for = 1
        self._paid_outside_ns = 0  # for this batch, beside its parts; of a processor's time

    def begin_in_fork(self) -> None:
        """This is another process now: nothing was done in it, and nobody looks."""
        self.thread, self._inner_ns[:] = None, [0]
        self.open.clear()
        self._begin_anew()
        self.take_work()

    def end(self) -> None:
        """Time nothing more; everything is as it was."""
        if self._taken_out:
            self._patches.put_in()
        self._patches.undo()
        self.looks.stop_looking()

    # ---- windows

    def draw_batch(self) -> None:
        """A batch is about to be made: whether it is timed."""
        if self.thread is None:  # else it is made for one that is
            self._stands_for = self._budget.draw_batch()
            self._paid_outside_ns = 0

    @contextmanager
    def timing(self, *holders: Any, themselves: bool = False) -> Iterator[bool]:
        """Time the transforms of these data sets or collate functions in the block, in this thread.

        Whether that is done: one thread is timed at a time, and batches that were drawn. `themselves`: the
        holders are transforms.
        """
        if self.thread is not None or not (self._stands_for or themselves):
            yield self.thread == get_ident()
            return
        entered_ns = thread_time_ns()
        if self._taken_out:
            self._patches.put_in()
            self._taken_out = False
        try:
            for holder in holders:
                self._know_pipeline(holder, themselves)
            self._hear_decoders()
            self.looks.begin_looking()
        except Exception:  # strangers' classes that cannot be looked at: what is known of them is timed
            pass
        self.thread = get_ident()
        self._paid_outside_ns += thread_time_ns() - entered_ns
        try:
            yield True
        finally:
            self.thread = None
            self.looks.pause_looking()
            if self._stands_for > _FEW:
                self._taken_out = True
                self._patches.take_out()

    def end_batch(self, spent_ns: int, timed: bool) -> BatchWork | None:
        """A batch was made in this time; what was done, if it was timed."""
        if not timed:
            self._budget.add_batch(spent_ns, None)
            return None
        begun_ns = thread_time_ns()
        work = self.take_work()
        paid_ns = min(work.paid_ns, _MOST_PER_CALL_NS * sum(part.calls for part in work.parts))
        paid_ns += self._paid_outside_ns + thread_time_ns() - begun_ns
        self._budget.add_batch(spent_ns - work.paid_ns, paid_ns)
        return work._replace(stands_for=self._stands_for)

    # ---- what is known

    def _know_pipeline(self, holder: Any, itself: bool) -> None:
        """Its transforms; looked for again when it holds something else than before."""
        held = tuple(map(id, list_attributes(holder).values()))
        known = self._pipelines.get(id(holder))
        if known is not None and known.held == held and known.holder() is holder:
            return
        with suppress(TypeError):  # what nobody can say of when it is gone is looked at every time
            self._pipelines[id(holder)] = _Pipeline(weakref.ref(holder), held)
        for one in find_transforms(holder, itself):
            key, kind = id(one.transform), type(one.transform)
            with suppress(TypeError, AttributeError):  # also: a class that cannot be changed
                self._alive[key] = weakref.ref(one.transform, functools.partial(self._forget, key))
                what = "transform" if one.method == "__call__" else "dataset"
                self._parts[key] = TimedPart(one.name, what, one.origin, one.inside, one.has_parts)
                if kind not in self._standing and not kind.__module__.startswith(_NOT_TIMED):
                    self._standing.add(kind)
                    self._patches.put(kind, one.method, self._time_method(kind, one.method))

    def _hear_decoders(self) -> None:
        for target in _DECODERS:
            module, name = target
            if target in self._standing or module not in sys.modules:
                continue
            self._standing.add(target)
            owner: Any = sys.modules[module]
            *within, name = name.split(".")
            for step in within:
                owner = vars(owner)[step]
            if name in vars(owner):
                self._patches.put(owner, name, self._time_decoder(target, vars(owner)[name]))

    def _forget(self, key: int, reference: Any) -> None:
        if self._alive.get(key) is reference:
            self._alive.pop(key, None)
            self._parts.pop(key, None)

    # ---- stand-ins

    def _time_method(self, kind: Any, name: str) -> Any:
        """A stand-in for a method of a class; one that is inherited is looked for anew at every call."""
        parts, open_parts = self._parts, self.open
        plain: Any = vars(kind).get(name)

        @functools.wraps(getattr(kind, name))
        def call_timed(transform: Any, *args: Any, **kwargs: Any) -> Any:
            if self.thread is None:
                if plain is not None:
                    return plain(transform, *args, **kwargs)
                return getattr(super(kind, transform), name)(*args, **kwargs)
            entered_ns = perf_counter_ns()
            call = plain.__get__(transform) if plain is not None else getattr(super(kind, transform), name)
            part = parts.get(id(transform))
            if part is None or get_ident() != self.thread or (open_parts and open_parts[-1] is part):
                return call(*args, **kwargs)
            return self._time_call(part, entered_ns, call, args, kwargs, find_image(kwargs or args))

        return call_timed

    def _time_decoder(self, target: tuple[str, str], plain: Any) -> Any:
        part = self._named.setdefault(("decode", ".".join(target)), TimedPart(".".join(target), "decode"))
        open_parts = self.open
        lazy, only_outside = target == _LAZY, target == _ALSO_A_TRANSFORM

        def is_counted(args: tuple[Any, ...]) -> bool:
            if get_ident() != self.thread or (open_parts and open_parts[-1].kind == "decode"):
                return False
            if lazy:
                return bool(list_attributes(args[0]).get("tile"))
            return not (only_outside and any(one.kind == "transform" for one in open_parts))

        def decode_timed(*args: Any, **kwargs: Any) -> Any:
            if self.thread is None:
                return plain(*args, **kwargs)
            entered_ns = perf_counter_ns()
            if not is_counted(args):
                self._paid_ns += perf_counter_ns() - entered_ns
                return plain(*args, **kwargs)
            return self._time_call(part, entered_ns, plain, args, kwargs)

        return functools.wraps(plain)(decode_timed)

    # ---- time

    def _time_call(
        self,
        part: TimedPart,
        entered_ns: int,
        call: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: Any = _NOT_LOOKED_FOR,
    ) -> Any:
        """Call something under a name; `before` is the image that it was given."""
        self.open.append(part)
        self._inner_ns.append(0)
        paid_ns, result = self._paid_ns, before
        begun_ns = perf_counter_ns()
        try:
            result = call(*args, **kwargs)
            return result
        finally:
            ended_ns = perf_counter_ns()
            part.applied += before is not _NOT_LOOKED_FOR and find_image(result) is not before
            self._end_part(part, ended_ns - begun_ns, paid_ns)
            self._paid_ns += begun_ns - entered_ns + perf_counter_ns() - ended_ns

    @contextmanager
    def _inside(self, part: TimedPart) -> Iterator[None]:
        """The block is under a name."""
        entered_ns = perf_counter_ns()
        self.open.append(part)
        self._inner_ns.append(0)
        paid_ns, begun_ns = self._paid_ns, perf_counter_ns()
        try:
            yield
        finally:
            ended_ns = perf_counter_ns()
            self._end_part(part, ended_ns - begun_ns, paid_ns)
            self._paid_ns += begun_ns - entered_ns + perf_counter_ns() - ended_ns

    def _end_part(self, part: TimedPart, taken_ns: int, paid_ns: int) -> None:
        """Its own time is without its parts', and without what timing them took."""
        spent_ns = taken_ns - (self._paid_ns - paid_ns)
        self.open.pop()
        part.own_ns += spent_ns - self._inner_ns.pop()
        part.total_ns += spent_ns
        part.calls += 1
        self._inner_ns[-1] += spent_ns

    @contextmanager
    def calling(self, transform: Any) -> Iterator[None]:
        """Time a transform that is called past its class."""
        part = self._parts.get(id(transform))
        if part is None or self.thread != get_ident():
            yield
            return
        with self._inside(part):
            yield

    @contextmanager
    def region(self, name: str, kind: str = "region", function: Any = None) -> Iterator[None]:
        """Time a block that has a name, where transforms are timed; `function` is what it calls."""
        if self.thread != get_ident():
            yield
            return
        part = self._named.get((kind, name))
        if part is None:
            origin = None if function is None else tell_function(function)
            part = self._named[kind, name] = TimedPart(name, kind, origin, parts=kind == "region")
        with self._inside(part):
            yield

    def take_work(self) -> BatchWork:
        """What was done since it was asked last."""
        every = [*self._parts.values(), *self._named.values()]
        paid_ns, self._paid_ns = self._paid_ns, 0
        parts = tuple(part.take_work() for part in every if part.calls)
        return BatchWork(parts, self.looks.take_looks(), paid_ns=paid_ns)

    def _find_place(self) -> tuple[int, TimedPart | None] | None:
        """The thread to look at and the part that runs; None where that has no parts. Asked by a thread."""
        thread = self.thread
        part = self.open[-1] if self.open else None
        return None if thread is None or (part is not None and not part.has_parts) else (thread, part)


def find_image(value: Any) -> Any:
    """The image among what a transform takes or gives: that of a dict, else what comes first."""
    for _ in range(_NESTED):
        kind = type(value)
        if not (kind is tuple or kind is list or kind is dict) or not value:
            break
        if kind is not dict:
            value = value[0]
        elif "image" in value:
            value = value["image"]
        elif "img" in value:
            value = value["img"]
        else:
            value = next(iter(value.values()))
    return value


_timer: tuple[int, TransformTimer] | None = None


def find_timer() -> TransformTimer:
    """The timer of this process."""
    global _timer
    process = os.getpid()
    if _timer is None:
        pass_over_in_warnings()  # a worker that was spawned has modules of its own
        _timer = (process, TransformTimer())
    elif _timer[0] != process:
        _timer[1].begin_in_fork()
        _timer = (process, _timer[1])
    return _timer[1]


def end_timing() -> None:
    """Time nothing more in this process; a later batch begins anew."""
    global _timer
    if _timer is not None and _timer[0] == os.getpid():
        _timer[1].end()
    _timer = None
