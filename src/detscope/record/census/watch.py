"""Counts, in steps of their own, every place where the host would wait for the device or the other way round.

Two of torch's modes look at the same step: at functions as Python calls them (`.cpu()` is no operator on a
CPU) and at operators as the dispatcher runs them (`int(tensor)` is no function). Each find is counted by
kind and by line: the innermost one outside of torch, and the script's own. A fault of ours ends the counting
and never reaches the script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detscope.parts import parts_of
from detscope.record.census.modes import push_modes, remove_modes
from detscope.record.census.operators import (
    CHECKED_ON_A_CPU_ONLY,
    FACTORIES,
    FEED,
    FROM_HOST,
    INDEX,
    INDEXING,
    LAUNCH,
    READ,
    SIZE,
    TO_HOST,
    WAITING,
    WITHOUT_KERNEL,
    is_masked,
)
from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener
from detscope.record.census.places import TensorPlaces, tensors_of
from detscope.record.census.sites import Site, SiteFinder
from detscope.record.census.source import read_line

_LITERAL_HOST = ("'cpu'", '"cpu"')


class CensusFind(NamedTuple):
    """Something that happens at a line."""

    phase: str
    kind: str
    what: str  # the operator or method
    site: Site
    detail: str = ""


class Weights:
    """How often, how long and how much."""

    __slots__ = ("bytes", "count", "host_ns")

    def __init__(self) -> None:
        self.count = self.host_ns = self.bytes = 0


class Census:
    """Listens from `begin_step` to `end_step`; `phase` says which one runs: loading is none of the step."""

    def __init__(self, real_device: bool, phase: Callable[[], str | None] = lambda: None) -> None:
        self._phase = phase
        self._patterns = parts_of("census", CensusPattern)
        self._modes: tuple[TorchFunctionMode, TorchDispatchMode] | None = None
        self.fault: str | None = None  # of ours: from then on nothing is counted
        self.facts: dict[str, Any] = {}
        self.steps: list[int] = []
        self.places = TensorPlaces(real_device)
        self._clear()

    def _clear(self) -> None:
        self.finds: dict[CensusFind, Weights] = {}
        self.places.forget_host()
        self.sites = SiteFinder()
        self.listeners: list[Listener] = []
        self.checking = 0  # inside of a function that checks on a CPU only
        self.counted: str | None = None  # the method that is under way and was counted

    @property
    def is_listening(self) -> bool:
        """Whether a step is being counted."""
        return self._modes is not None

    def begin_step(self) -> None:
        """Listen from here on, in this thread and in those that autograd hands its work to."""
        self._clear()
        self.listeners = [pattern.listen() for pattern in self._patterns]
        self._modes = _Functions(self), _Operators(self)
        push_modes(*self._modes)

    def end_step(self, step: int | None) -> list[tuple[Any, ...]]:
        """Listen no more; the rows of this step, none where it is not to be kept (None)."""
        if self._modes is None:
            return []
        remove_modes(*self._modes)
        self._modes = None
        self.sites.end_calls()
        rows = (
            [] if step is None or self.fault else [self._make_row(step, *one) for one in self.finds.items()]
        )
        if rows and step is not None:
            self.steps.append(step)
            for pattern in self._patterns:
                if pattern.facts is not None and not self.facts.get(pattern.name):
                    self.facts[pattern.name] = pattern.facts()
        self._clear()
        return rows

    def add_batch(self, batch: Any) -> None:
        """Tensors that a loader gave: they count as the device's, and moving them there is a copy."""
        self.places.add_batch(tensors_of(batch))

    def _make_row(self, step: int, find: CensusFind, weights: Weights) -> tuple[Any, ...]:
        site, own = find.site, find.site.own or find.site.line
        source = read_line(site.file, site.line.line)
        innermost = (site.line.file, site.line.line, site.line.function)
        outer = (own.file, own.line, own.function)
        counts = (weights.count, self.sites.most.get(find, 1), weights.host_ns, weights.bytes)
        return (step, find.phase, find.kind, find.what, *innermost, *outer, *counts, *source, find.detail)

    # ---- what the modes tell

    def look_around(self) -> tuple[Site, Any, str] | None:
        """Where in the code this is and in which phase; None while a batch is fetched."""
        phase = self._phase() or ""
        if phase == "data":
            return None
        return *self.sites.find_site(sys._getframe(2)), phase

    def add_find(
        self,
        where: tuple[Site, Any, str],
        kind: str,
        what: str,
        host_ns: int = 0,
        size: int = 0,
        detail: str = "",
    ) -> None:
        """Something was found there."""
        site, frame, phase = where
        find = CensusFind(phase, kind, what, site, detail)
        weights = self.finds.get(find)
        if weights is None:
            weights = self.finds[find] = Weights()
        weights.count += 1
        weights.host_ns += host_ns
        weights.bytes += size
        self.sites.count_in_call(frame, find)

    def fail(self, error: BaseException) -> None:
        """Something of ours went wrong: say so at the end, and let the script run on."""
        self.fault = self.fault or f"{type(error).__name__}: {error}"


class _Functions(TorchFunctionMode):
    """Functions and methods as Python calls them."""

    def __init__(self, census: Census) -> None:
        super().__init__()
        self._census = census

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        census, given = self._census, kwargs or {}
        name = getattr(func, "__name__", "")
        if name in CHECKED_ON_A_CPU_ONLY:
            if name == "one_hot" and _asks_for_the_largest(args, given):
                self._tell(READ, name, args)
            census.checking += 1
            try:
                return func(*args, **given)
            finally:
                census.checking -= 1
        if name in TO_HOST and args and isinstance(args[0], torch.Tensor):
            return self._copy_to_host(name, func, args, given)
        if (
            name in ("to", "cuda")
            and args
            and isinstance(args[0], torch.Tensor)
            and _names_device(args[1:], given)
        ):
            return self._move(name, func, args, given)
        output = func(*args, **given)
        if name in FACTORIES and isinstance(output, torch.Tensor):
            if given.get("device") is None:
                census.places.put_on_host(output)
            elif name in FROM_HOST and not _is_device_tensor(census, args):
                self._tell(FEED, name, (output,))
        return output

    def _tell(self, kind: str, what: str, args: tuple[Any, ...], host_ns: int = 0) -> None:
        census = self._census
        if census.fault is not None or census.counted:
            return
        try:
            where = census.look_around()
            if where is not None:
                size = sum(one.numel() * one.element_size() for one in tensors_of(args))
                census.add_find(where, kind, what, host_ns, size, _describe(args))
        except Exception as error:
            census.fail(error)

    def _copy_to_host(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        census, tensor = self._census, args[0]
        if census.counted or census.places.is_on_host(tensor):
            return func(*args, **kwargs)
        census.counted = name
        begin = perf_counter_ns()
        try:
            output = func(*args, **kwargs)
        finally:
            census.counted = None
        self._tell(TO_HOST[name], name.strip("_"), (tensor,), perf_counter_ns() - begin)
        if isinstance(output, torch.Tensor):
            output = _told_apart(output, tensor)
            census.places.put_on_host(output)
        return output

    def _move(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        census, tensor = self._census, args[0]
        if not census.places.knows_devices and _is_written_host(sys._getframe(2)):
            return self._copy_to_host(name, func, args, kwargs)
        begin = perf_counter_ns()
        output = func(*args, **kwargs)
        if census.places.comes_from_host(tensor, output):
            self._tell(FEED, name, (tensor,), perf_counter_ns() - begin)
        elif census.places.goes_to_host(tensor, output):
            self._tell(TO_HOST["cpu"], name, (tensor,), perf_counter_ns() - begin)
        if isinstance(output, torch.Tensor) and not census.places.knows_devices:
            output = _told_apart(output, tensor)
            census.places.put_on_device(output)
        return output


class _Operators(TorchDispatchMode):
    """Operators as the dispatcher runs them."""

    def __init__(self, census: Census) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._census = census

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        begin = perf_counter_ns()
        output = func(*args, **(kwargs or {}))
        host_ns = perf_counter_ns() - begin
        if self._census.fault is None:
            try:
                self._count(func, args, kwargs or {}, output, host_ns)
            except Exception as error:
                self._census.fail(error)
        return output

    def _count(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, host_ns: int
    ) -> None:
        census, places = self._census, self._census.places
        taken = [*tensors_of(args), *tensors_of(kwargs)]
        on_device = places.follow_operator(taken, tensors_of(output))
        if not taken or census.counted or census.checking:
            return
        where = census.look_around()
        if where is None:
            return
        name = func._schema.name
        heard = HeardOperator(
            name, args, kwargs, output, where[0], on_device, func.is_view, torch.is_grad_enabled(), where[2]
        )
        for listen in census.listeners:
            find = listen(heard)
            if find is not None:
                at = (find.site or where[0], *where[1:])
                census.add_find(at, find.kind, find.what, host_ns, find.bytes, find.detail)
        if not on_device:
            return
        kind = WAITING.get(name)
        if kind is not None:
            census.add_find(where, kind, name, host_ns)
        elif is_masked(name, args):
            census.add_find(where, SIZE, f"{name} by a mask", host_ns)
        elif name in INDEXING and any(places.is_on_host(one) for one in tensors_of(args[1])):
            census.add_find(where, INDEX, name, host_ns)
        if not func.is_view and name not in WITHOUT_KERNEL:
            size = sum(one.numel() * one.element_size() for one in tensors_of(output))
            census.add_find(where, LAUNCH, name, host_ns, size)


def _names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    places = (torch.device, str, int)
    return isinstance(kwargs.get("device"), places) or any(isinstance(one, places) for one in args[:1])


def _is_written_host(frame: Any) -> bool:
    """Whether the line says `cpu` itself: on a CPU a device that a variable names is the device."""
    while frame is not None and f"{torch.__path__[0]}/" in frame.f_code.co_filename:
        frame = frame.f_back
    text = "" if frame is None else read_line(frame.f_code.co_filename, frame.f_lineno).text
    return any(one in text for one in _LITERAL_HOST)


def _is_device_tensor(census: Census, args: tuple[Any, ...]) -> bool:
    return any(isinstance(one, torch.Tensor) and not census.places.is_on_host(one) for one in args[:1])


def _asks_for_the_largest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    return isinstance(classes, int) and classes < 0


def _told_apart(output: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """On a CPU a copy to where a tensor is already is that tensor: another view of it can be followed."""
    if output is not tensor or type(output) is not torch.Tensor:
        return output
    with _disable_current_modes():
        return output.view_as(output)


def _describe(args: Iterable[Any]) -> str:
    tensor = next(iter(tensors_of(args)), None)
    if tensor is None:
        return ""
    shape = "x".join(map(str, tensor.shape)) or "1"
    return f"dtype={str(tensor.dtype).removeprefix('torch.')} shape={shape} pinned={_is_pinned(tensor)}"


def _is_pinned(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.is_pinned()) if torch.cuda.is_available() else False
    except (RuntimeError, NotImplementedError):
        return False
