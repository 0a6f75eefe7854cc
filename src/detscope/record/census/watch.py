"""Counts, in steps of their own, every place where the host would wait for the device or the other way round.

Two of torch's modes look at the same step: at functions as Python calls them (`.cpu()` is no operator on a
CPU) and at operators as the dispatcher runs them (`int(tensor)` is no function). Each find is counted by
kind and by line: the innermost one outside of torch, and the script's own. A fault of ours ends the counting
and never reaches the script.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from detscope.parts import parts_of
from detscope.record.census.functions import FunctionListener
from detscope.record.census.launches import OperatorListener
from detscope.record.census.modes import push_modes, remove_modes
from detscope.record.census.operators import LAUNCH
from detscope.record.census.pattern import CensusPattern, Listener
from detscope.record.census.places import TensorPlaces, tensors_in_batch, tensors_of
from detscope.record.census.sites import Site, SiteFinder
from detscope.record.census.source import read_line
from detscope.record.census.statements import read_statement
from detscope.record.census.tracing import TraceWatch
from detscope.record.code_lines import PACKAGES

_MOST_STATEMENTS = 100
_READERS = ("detscope.record.content", "detscope.record.script.losses")  # of ours, that look at tensors


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
        self._modes: tuple[FunctionListener, OperatorListener] | None = None
        # what is traced shall hold nothing of ours: then the step is not counted
        self._tracing = TraceWatch(lambda: self.end_step(None))
        self._where = (0, 0)  # process and thread that are counted
        self.fault: str | None = None  # of ours: from then on nothing is counted
        self.facts: dict[str, Any] = {}
        self.statements: dict[str, dict[str, Any]] = {}  # of lines that a change may be written for
        self._files: dict[str, set[str]] = {}  # of the script's own code, by the names that rows have
        self.steps: list[int] = []
        self.places = TensorPlaces(real_device)
        self._clear()

    def _clear(self) -> None:
        self.finds: dict[CensusFind, Weights] = {}
        self.places.forget_host()
        self.sites = SiteFinder()
        self.listeners: list[Listener] = []
        self.checking = 0  # inside of a function that checks on a CPU only
        self.counted: str | None = None  # the method that is under way and is counted itself
        self.making = False  # a factory is under way that was told a device

    @property
    def is_listening(self) -> bool:
        """Whether a step is being counted."""
        return self._modes is not None

    @property
    def is_loading(self) -> bool:
        """Whether a batch is being fetched: what is made then is data."""
        return self._phase() == "data"

    def hears(self, mode: object) -> bool:
        """Whether a mode is one of the step under way; in a worker that was forked from it none is."""
        return (
            self._modes is not None
            and mode in self._modes
            and self.fault is None
            and self._where[0] == os.getpid()
        )

    def begin_step(self, on_host: Iterable[torch.Tensor] = ()) -> None:
        """Listen from here on, in this thread and in those that autograd hands its work to."""
        self._clear()
        try:
            for tensor in on_host:
                self.places.put_on_host(tensor)
            self.listeners = [pattern.listen() for pattern in self._patterns]
        except Exception as error:
            self.fail(error)
        self._where = os.getpid(), threading.get_ident()
        self._modes = FunctionListener(self), OperatorListener(self)
        push_modes(*self._modes, below=not self.places.knows_devices)
        self._tracing.start()

    def end_step(self, step: int | None) -> list[tuple[Any, ...]]:
        """Listen no more; the rows of this step, none where it is not to be kept (None)."""
        if self._modes is None:
            return []
        remove_modes(*self._modes)
        self._tracing.stop()
        self._modes = None
        rows: list[tuple[Any, ...]] = []
        try:
            self.sites.end_calls()
            if step is not None and self.fault is None:
                rows = [self._make_row(step, *one) for one in self.finds.items()]
                self._add_facts()
                self.steps += [step] if rows else []
        except Exception as error:
            self.fail(error)
        self._clear()
        return rows

    def _add_facts(self) -> None:
        for pattern in self._patterns:
            if pattern.facts is not None and not self.facts.get(pattern.name):
                self.facts[pattern.name] = pattern.facts()

    def own_files(self) -> dict[str, str]:
        """Where the script's own files lie below the current folder, by names; those that tell which."""
        below = Path.cwd()
        alone = {name: Path(*paths) for name, paths in self._files.items() if len(paths) == 1}
        return {
            name: path.relative_to(below).as_posix()
            for name, path in alone.items()
            if path.is_relative_to(below)
        }

    def add_batch(self, batch: Any) -> None:
        """Tensors that a loader gave: they count as the device's, and moving them there is a copy."""
        self.places.add_batch(tensors_in_batch(batch))

    def add_arguments(self, given: Any) -> None:
        """A model was given these: they lie where it does, wherever they were made."""
        for tensor in tensors_of(given) if self.is_listening else ():
            self.places.put_on_device(tensor, is_batch=True)

    def _make_row(self, step: int, find: CensusFind, weights: Weights) -> tuple[Any, ...]:
        site, own = find.site, find.site.own or find.site.line
        source = read_line(site.file, site.line.line)
        if find.kind != LAUNCH and len(self.statements) < _MOST_STATEMENTS:
            statement = read_statement(site.file, site.line.line)
            name = f"{site.line.file}:{site.line.line}"
            if statement is not None and self.statements.setdefault(name, statement) != statement:
                self.statements[name] = {}  # of two files of one name
        if site.file and PACKAGES not in site.file:
            self._files.setdefault(site.line.file, set()).add(site.file)
        innermost = (site.line.file, site.line.line, site.line.function)
        outer = (own.file, own.line, own.function)
        counts = (weights.count, self.sites.most.get(find, 1), weights.host_ns, weights.bytes)
        return (step, find.phase, find.kind, find.what, *innermost, *outer, *counts, *source, find.detail)

    # ---- what the modes tell

    def look_around(self, frame: FrameType | None) -> tuple[Site, Any, str] | None:
        """Where in the code this is and in which phase; None while a batch is fetched, and for what we do."""
        phase = self._phase() or ""
        if phase == "data" or (frame is not None and frame.f_globals.get("__name__") in _READERS):
            return None
        site, function = self.sites.find_site(frame)
        if function is None and threading.get_ident() != self._where[1]:  # of the engine: who went backward
            site, function = self.sites.find_site(sys._current_frames().get(self._where[1]))
        return site, function, phase

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
