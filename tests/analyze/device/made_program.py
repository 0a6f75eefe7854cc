"""A made-up training program and the device it runs on, simulated tick by tick: the answer is known.

One tick is one microsecond. The host runs steps: loader, transfer, forward through modules, backward on
another thread, optimizer. Every launch takes effect on a stream that works in order. What the host knew
when it launched (step, phase, module, direction, operator) is written down with the event itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

TICK_NS = 1000
MAIN, ENGINE = 1, 2
PROCESS = 100
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#SGD.step"
ENGINE_PREFIX = "autograd::engine::evaluate_function: "


@dataclass
class HostEvent:
    kind: str
    name: str
    start: int
    end: int
    thread: int
    correlation: int | None = None
    sequence: int | None = None
    external: int | None = None


@dataclass
class DeviceEvent:
    kind: str
    name: str
    stream: int
    start: int
    end: int
    launch: HostEvent
    operator: str
    module: str | None
    direction: str
    phase: str
    step: int
    copy: str | None = None
    blocks: float | None = None
    occupancy: float | None = None
    linked: bool = True


@dataclass
class Program:
    host: list[HostEvent] = field(default_factory=list)
    device: list[DeviceEvent] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # number, start, end


@dataclass(frozen=True)
class Wishes:
    """What the program should be like."""

    seed: int = 0
    steps: int = 2
    modules: int = 3
    streams: int = 2
    loader: bool = True
    backward: bool = True
    synchronisations: float = 0.2  # chance per operator
    unlinked: float = 0.0


class Simulation:
    """Runs the program; `now` is the host's clock."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes = wishes
        self.random = Random(wishes.seed)
        self.now = 1000
        self.free = dict.fromkeys(range(1, wishes.streams + 1), 0)
        self.starts: set[int] = set()
        self.correlation = self.external = 10
        self.sequence = 100
        self.program = Program()
        self.thread = MAIN
        self.step = self.number = 0
        self.phase, self.direction = "other", "forward"
        self.path: list[str] = []

    def run(self) -> Program:
        self.number = self.random.choice([0, 7, 101])
        for _ in range(self.wishes.steps):
            self._step()
            self.number += 1
        return self.program

    # ---- the program

    def _step(self) -> None:
        start = self.now
        if self.wishes.loader and self.random.random() < 0.8:
            self._event("loader", LOADER, lambda: self._work(1, 80))
        self._work(0, 5)
        if self.random.random() < 0.7:
            self._transfer()
        self._forward()
        if self.wishes.backward:
            self._backward()
        self._optimizer()
        if self.random.random() < 0.3:
            self._wait("cudaDeviceSynchronize")
        self._work(0, 30)
        self.program.host.append(HostEvent("step", f"ProfilerStep#{self.number}", start, self.now, MAIN))
        self.program.steps.append((self.number, start, self.now))

    def _transfer(self) -> None:
        self.phase = "transfer"
        blocking = self.random.random() < 0.5
        self._event("operator", "aten::to", lambda: self._copy("aten::to", "HtoD", blocking))
        self.phase = "other"

    def _forward(self) -> None:
        self.phase, self.direction = "forward", "forward"
        self.made: list[tuple[int, str | None]] = []
        self._event("module", "nn.Module: Net_0", self._root)
        self.phase = "other"
        self._work(0, 5)

    def _root(self) -> None:
        self._work(0, 3)
        for index in range(self.wishes.modules):
            self.path = [f"Block_{index}"]
            self._event("module", f"nn.Module: Block_{index}", lambda: self._block())
            self.path = []
        self._operator("aten::mean")

    def _block(self) -> None:
        self._operator("aten::relu")
        self.path.append("Conv2d_0")
        self._event("module", "nn.Module: Conv2d_0", lambda: self._operator("aten::conv2d"))
        self.path.pop()
        if self.random.random() < 0.5:
            self._operator("aten::add")

    def _operator(self, name: str) -> None:
        self._work(0, 4)
        sequence = self.sequence
        self.sequence += 1
        self.made.append((sequence, ".".join(self.path)))

        def inside() -> None:
            for _ in range(self.random.choice([0, 1, 1, 2])):
                self._kernel(name)

        self._event("operator", name, inside, sequence=sequence)
        if self.random.random() < self.wishes.synchronisations:
            self._synchronise()

    def _synchronise(self) -> None:
        kind = self.random.choice(["item", "nonzero", "cpu", "synchronize"])
        if kind == "synchronize":
            self._wait("cudaDeviceSynchronize")
            return
        name = {"item": "aten::item", "nonzero": "aten::nonzero", "cpu": "aten::to"}[kind]
        self._event("operator", name, lambda: self._copy(name, "DtoH", self.random.random() < 0.5))

    def _backward(self) -> None:
        self.phase = self.direction = "backward"
        self.thread = ENGINE
        for sequence, module in reversed(self.made):
            self._work(0, 3)
            if self.random.random() < 0.7:
                self.path = module.split(".") if module else []
                self._event(
                    "operator",
                    ENGINE_PREFIX + "AddBackward0",
                    lambda sequence=sequence: self._event(
                        "operator", "AddBackward0", lambda: self._kernel("AddBackward0"), sequence=sequence
                    ),
                    sequence=sequence,
                )
        self.path, self.thread = [], MAIN
        self.phase, self.direction = "other", "forward"

    def _optimizer(self) -> None:
        self.phase = "optimizer"
        self._event("annotation", OPTIMIZER, lambda: self._update())
        self.phase = "other"

    def _update(self) -> None:
        for _ in range(self.random.randint(0, 2)):
            self._event("operator", "aten::_foreach_add_", lambda: self._kernel("aten::_foreach_add_"))

    # ---- the host and the device

    def _work(self, least: int, most: int) -> None:
        self.now += self.random.randint(least, most)

    def _event(self, kind: str, name: str, inside: Any, sequence: int | None = None) -> None:
        event = HostEvent(kind, name, self.now, 0, self.thread, sequence=sequence)
        if kind == "operator":
            self.external += 1
            event.external = self.external
        self.now += 1
        inside()
        self.now += 1
        event.end = self.now
        self.program.host.append(event)

    def _call(self, name: str, duration: int) -> HostEvent:
        self.correlation += 1
        event = HostEvent("runtime", name, self.now, self.now + duration, self.thread, self.correlation)
        self.program.host.append(event)
        self.now += duration
        return event

    def _on_device(
        self, kind: str, name: str, call: HostEvent, duration: int, operator: str, **more: Any
    ) -> DeviceEvent:
        stream = self.random.choice(list(self.free))
        start = max(call.start + 1, self.free[stream]) + self.random.choice([0, 0, 1, 3, 30])
        while start in self.starts:  # two events that begin together would make the answer ambiguous
            start += 1
        self.starts.add(start)
        self.free[stream] = start + duration
        event = DeviceEvent(
            kind,
            name,
            stream,
            start,
            start + duration,
            call,
            operator,
            ".".join(self.path) if self.phase in ("forward", "backward") else None,
            self.direction,
            self.phase,
            self.number,
            linked=self.random.random() >= self.wishes.unlinked,
            **more,
        )
        self.program.device.append(event)
        return event

    def _kernel(self, operator: str) -> None:
        call = self._call("cudaLaunchKernel", self.random.randint(1, 4))
        blocks = self.random.choice([0.25, 0.5, 2.0])
        self._on_device(
            "kernel",
            f"kernel_of_{operator}",
            call,
            self.random.choice([1, 5, 20, 60]),
            operator,
            blocks=blocks,
            occupancy=self.random.choice([25.0, 50.0]),
        )

    def _copy(self, operator: str, direction: str, blocking: bool) -> None:
        host = "Pageable" if blocking else "Pinned"
        name = f"Memcpy HtoD ({host} -> Device)" if direction == "HtoD" else f"Memcpy DtoH (Device -> {host})"
        call = self._call("cudaMemcpyAsync", 2)
        event = self._on_device("copy", name, call, self.random.randint(1, 30), operator, copy=direction)
        if blocking:
            call.end = self.now = max(self.now, event.end + 1)
        if direction == "DtoH" or blocking:
            self._wait("cudaStreamSynchronize")

    def _wait(self, name: str) -> None:
        """Until everything that was queued is done."""
        done = max(self.free.values())
        self._call(name, max(1, done - self.now + 1))
