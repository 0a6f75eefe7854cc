"""Where the program is, and the truth that follows: what each step, phase and module took on the device.

A border (of a phase, a module, a step) is a mark that costs nothing: the device comes to it at
`max(free_at, host's now)` of the stream that is current. Between two borders lies the device's interval; the
work that was launched between them is what it was busy with.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from simulated.device import COMMUNICATION, Machine, Work
from simulated.tensors import find_device

_sequence_number = torch._C._autograd._get_sequence_nr


class Label(NamedTuple):
    """Where something was launched."""

    step: int = -1
    phase: str = "other"
    module: str | None = None  # path in the model; None: outside of it
    direction: str = "forward"


@dataclass(frozen=True)
class Border:
    """The begin or the end of something, on both clocks."""

    label: Label
    kind: str  # step, phase, module
    name: str
    begins: bool
    host_ns: int
    device_ns: int
    stream: int


@dataclass(frozen=True)
class Stretch:
    """The truth of something: its interval on the device, the work in it, and the host's time."""

    wall_ns: int = 0
    busy_ns: int = 0
    host_ns: int = 0

    @property
    def idle_ns(self) -> int:
        return self.wall_ns - self.busy_ns


class Labels:
    """Follows the program: steps and phases as the test says them, modules by hooks of torch's."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        machine.find_label = self.find_label
        self.step = -1
        self.device: int | None = None  # of the model; None: the current one
        self.phases: list[str] = []
        self.modules: list[str] = []
        self.borders: list[Border] = []
        self._names: dict[int, str] = {}  # of modules and parameters, by id
        self._makers: dict[tuple[int, int], str | None] = {}  # of autograd nodes, by thread and number
        # by thread: the number of the node that comes next; in a new thread that is the first
        self._following: dict[int, int] = {machine.thread: _sequence_number()}
        self._engines: list[tuple[int, int]] = []  # thread that entered each open backward; modules open then
        self._node_module: str | None = None

    def watch_model(self, model: nn.Module, prefix: str = "") -> nn.Module:
        """Know the names of its modules and parameters, and where it lives."""
        self.device = next((find_device(one) for one in model.parameters()), None)
        for path, module in model.named_modules(prefix=prefix):
            self._names[id(module)] = path
        for path, parameter in model.named_parameters(prefix=prefix):
            self._names[id(parameter)] = path.rpartition(".")[0]
        return model

    @contextmanager
    def follow_modules(self) -> Iterator[None]:
        """Hear of every call of a module that is known."""

        def enter(module: nn.Module, _args: Any) -> None:
            path = self._names.get(id(module))
            if path is not None:
                self.modules.append(path)
                self._add_border("module", path, True)

        def leave(module: nn.Module, _args: Any, _output: Any) -> None:
            path = self._names.get(id(module))
            if path is not None and path in self.modules:
                while self.modules.pop() != path:
                    continue
                self._add_border("module", path, False)

        handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def find_label(self) -> Label:
        phase = self.phases[-1] if self.phases else "other"
        if not self._engines:
            return Label(self.step, phase, self.modules[-1] if self.modules else None)
        recomputes = len(self.modules) > self._engines[-1][1]
        module, direction = (self.modules[-1], "recompute") if recomputes else (self._node_module, "backward")
        return Label(self.step, phase, module, direction)

    def _add_border(self, kind: str, name: str, begins: bool) -> None:
        stream = self._machine.find_stream(self.device)
        now_ns = self._machine.clock.now()
        device_ns = max(stream.free_at, now_ns)
        self.borders.append(Border(self.find_label(), kind, name, begins, now_ns, device_ns, stream.number))

    def begin_step(self) -> None:
        """A batch is asked for."""
        if self.step >= 0:
            self._add_border("step", "step", False)
        self.step += 1
        self._add_border("step", "step", True)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What follows is this phase of the step."""
        self.phases.append(name)
        self._add_border("phase", name, True)
        try:
            yield
        finally:
            self._add_border("phase", name, False)
            self.phases.pop()

    # ---- autograd

    @contextmanager
    def inside_engine(self, caller: int) -> Iterator[None]:
        """The engine runs; nodes were made by the thread that called it."""
        self._engines.append((caller, len(self.modules)))
        try:
            yield
        finally:
            self._engines.pop()
            self._node_module = None

    def follow_operator(self) -> None:
        """An operator is dispatched: forward its nodes have the last numbers, backward one is under way."""
        node = torch._C._current_autograd_node()
        if node is None or not self._engines:
            # an operator makes none, one, or (in place) several nodes
            thread, following = self._machine.thread, _sequence_number()
            for number in range(self._following.get(thread, 0), following):
                self._makers[thread, number] = self.modules[-1] if self.modules else None
            self._following[thread] = following
        elif hasattr(node, "variable"):  # gradients are accumulated: by whom the parameter is
            self._node_module = self._names.get(id(node.variable))
        else:
            self._node_module = self._makers.get((self._engines[-1][0], node._sequence_nr()))


def _merge(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(stretches):
        if merged and start_ns <= merged[-1][1]:
            start_ns, last_ns = merged.pop()
            end_ns = max(end_ns, last_ns)
        merged.append((start_ns, end_ns))
    return merged


class Truth:
    """What was planted, by step."""

    def __init__(self, machine: Machine, labels: Labels) -> None:
        self._machine = machine
        self._labels = labels
        self._indexed = (-1, -1)  # how much of the machine's log and of the borders
        self._by_step: dict[int, list[Work]] = {}
        self._busy: list[tuple[int, int]] = []
        self._borders: dict[tuple[int, str, str], list[Border]] = {}

    def _index(self) -> None:
        """A detector's training has thousands of either, and is asked for hundreds of modules."""
        log, borders = self._machine.log, self._labels.borders
        if self._indexed == (len(log), len(borders)):
            return
        self._indexed = (len(log), len(borders))
        self._by_step, self._borders = {}, {}
        for work in log:
            self._by_step.setdefault(work.label.step, []).append(work)
        for border in borders:
            self._borders.setdefault((border.label.step, border.kind, border.name), []).append(border)
        self._busy = _merge((work.start_ns, work.end_ns) for work in log)

    def list_work(self, step: int, stream: int | None = 0) -> list[Work]:
        """Work that was launched in a step, on a stream or (None) on all of them."""
        self._index()
        return [work for work in self._by_step.get(step, ()) if stream is None or work.stream == stream]

    def _find_spans(self, step: int, kind: str, name: str) -> Iterator[tuple[Border, Border]]:
        self._index()
        begun: list[Border] = []
        for border in self._borders.get((step, kind, name), ()):
            if border.begins:
                begun.append(border)
            elif begun:
                yield begun.pop(), border

    def _measure(self, spans: list[tuple[Border, Border]]) -> Stretch:
        """The device is busy while any of its streams works: one may wait for another."""
        wall_ns = busy_ns = host_ns = 0
        self._index()
        for begin, end in spans:
            wall_ns += end.device_ns - begin.device_ns
            host_ns += end.host_ns - begin.host_ns
            first = bisect(self._busy, begin.device_ns, key=lambda stretch: stretch[1])
            for start_ns, end_ns in self._busy[first:]:
                if start_ns >= end.device_ns:
                    break
                busy_ns += max(0, min(end_ns, end.device_ns) - max(start_ns, begin.device_ns))
        return Stretch(wall_ns, busy_ns, host_ns)

    def find_step(self, step: int) -> Stretch:
        """From asking for its batch to asking for the next one."""
        return self._measure(list(self._find_spans(step, "step", "step")))

    def find_phase(self, step: int, name: str, stream: int = 0) -> Stretch:
        """A phase, as far as it ran on this stream."""
        spans = self._find_spans(step, "phase", name)
        return self._measure([pair for pair in spans if pair[0].stream == stream])

    def find_phase_work(self, step: int, name: str, stream: int = 0) -> int:
        """What a phase launched on a stream."""
        work = [one for one in self.list_work(step, stream) if one.label.phase == name]
        return sum(one.end_ns - one.start_ns for one in work)

    def find_data_wait(self, step: int) -> int:
        """How long the device stood idle while the host waited for the batch: the exposed wait."""
        return self.find_phase(step, "data").wall_ns

    def find_exposed_exchange(self, step: int) -> int:
        """How long collectives ran while nothing else did."""
        beside = [one for one in self.list_work(step, None) if one.name == COMMUNICATION]
        work = [one for one in self._machine.log if one.name != COMMUNICATION]
        covered = sorted((one.start_ns, one.end_ns) for one in work)
        exposed_ns = 0
        for start_ns, end_ns in _merge((one.start_ns, one.end_ns) for one in beside):
            free_ns = start_ns
            for begin_ns, last_ns in covered:
                if begin_ns < end_ns and last_ns > free_ns:
                    exposed_ns += max(0, begin_ns - free_ns)
                    free_ns = last_ns
            exposed_ns += max(0, end_ns - free_ns)
        return exposed_ns

    def find_module(self, step: int, path: str, direction: str = "forward") -> Stretch:
        """A module with what it calls; backward there are no borders, only work."""
        work = [one for one in self.list_work(step) if self._lies_in(one, path, direction)]
        spans = list(self._find_spans(step, "module", path)) if direction == "forward" else []
        found = self._measure(spans)
        return Stretch(found.wall_ns, sum(one.end_ns - one.start_ns for one in work), found.host_ns)

    @staticmethod
    def _lies_in(work: Work, path: str, direction: str) -> bool:
        module = work.label.module
        below = module is not None and (path in ("", module) or module.startswith(f"{path}."))
        return below and work.label.direction == direction
