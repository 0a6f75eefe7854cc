"""A training of known work: what it takes is read beside the recorder, by the same program in the same steps.

Work is repeated matrix products. A CPU's are read by the host's clock, a device's by marks of our own in its
queue; nothing of the recorder is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from time import perf_counter_ns, sleep
from typing import Any, Literal

import torch
from torch import nn

import detscope
from detscope.analyze.step.steps import choose_typical_steps
from detscope.analyze.summary import RunSummary, summarize
from detscope.machine.accelerator import Accelerator
from detscope.machine.peak import time_work
from detscope.runs.reader import Run, load_run

SIZES = {"small": 1, "middle": 2, "large": 4}  # how many times the work of the smallest
SMALLEST_S = 0.004  # of the smallest module's forward: far above what a clock or a noisy neighbour does to it
STEPS, WARMUP = 26, 2
WAIT_S = 0.03
COPY_BYTES = 32 << 20
_SIDE, _CPU_SIDE = 2048, 384


class OwnClock:
    """Reads moments beside the recorder."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._device = accelerator

    def read_moment(self) -> Any:
        """This moment of the host, or a mark in the device's queue."""
        if not self._device.has_clock:
            return perf_counter_ns()
        mark = self._device.make_mark()
        self._device.put_mark(mark)
        return mark

    def elapsed_ms(self, first: Any, last: Any) -> float:
        """Between two moments; the device has passed them."""
        if not self._device.has_clock:
            return float(last - first) / 1e6
        return self._device.elapsed_ns(first, last) / 1e6


@dataclass
class Readings:
    """Moments of one kind of work, two for each time that it ran, in the order of steps."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)


class PlantedModule(nn.Module):
    """So many products, forward; twice as many backward."""

    def __init__(self, clock: OwnClock, side: int, count: int, asks: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(side))
        self.count, self.asks = count, asks
        self._clock = clock
        self.forwards, self.backwards = Readings(), Readings()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Where `asks`, the host waits for a value at the end."""
        clock, begin = self._clock, self._clock.read_moment()
        backward: list[Any] = []
        if values.requires_grad:
            values.register_hook(lambda _: self.backwards.pairs.append((backward[0], clock.read_moment())))
        found = values
        for _ in range(self.count):
            found = found @ self.weight
        if found.requires_grad:
            found.register_hook(lambda _: backward.append(clock.read_moment()))
        self.forwards.pairs.append((begin, clock.read_moment()))
        if self.asks:
            found.sum().item()
        return found


class GreedyModule(nn.Module):
    """Asks for more memory than there is."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self._size = nn.Parameter(torch.ones(1)), size

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Never comes back."""
        return values + torch.empty(self._size, dtype=torch.uint8, device=values.device).sum()


class PlantedBatches:
    """Batches that come after a known wait, in memory that a device can read."""

    def __init__(self, batch: torch.Tensor, steps: int, wait_s: float) -> None:
        self._batch, self._steps, self._wait_s = batch, steps, wait_s
        self.waits_ms: list[float] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self._steps):
            begin = perf_counter_ns()
            if self._wait_s:
                sleep(self._wait_s)
            self.waits_ms.append((perf_counter_ns() - begin) / 1e6)
            yield self._batch


@dataclass
class PlantedRun:
    """What was recorded, and what was read beside it."""

    run: Run
    summary: RunSummary
    clock: OwnClock
    modules: dict[str, PlantedModule]
    copies: Readings
    waits_ms: list[float]

    @cached_property
    def steps(self) -> list[int]:
        """Those that the figures are made of."""
        return choose_typical_steps(self.run.table("steps")).steps

    @cached_property
    def _scale(self) -> float:
        """Figures are shares of all typical steps times the median step: what was read has to be, too."""
        of_device = self.summary.clocks.clock == "device"
        table = self.run.table("device_steps" if of_device else "steps").filter(phase="step")
        walls = [wall for step, wall in table.select("step", "wall_ns").iter_rows() if step in self.steps]
        middle = self.summary.clocks.device_step_ms if of_device else self.summary.step_ms.p50
        return (middle or 0.0) * 1e6 * len(walls) / sum(walls) if walls else 1.0

    def expect_ms(self, times_ms: Sequence[float]) -> float:
        """What a figure has to be where work took so long, step by step."""
        return fmean(times_ms) * self._scale if times_ms else 0.0

    def read_ms(self, readings: Readings) -> list[float]:
        """What was read beside the recorder, step by step."""
        return [self.clock.elapsed_ms(*readings.pairs[step]) for step in self.steps]

    def find_module(self, name: str) -> Any:
        """The product's figures of a module; None where it has none."""
        return next((one for one in self.summary.modules if one.path == name), None)


@dataclass(frozen=True)
class Workbench:
    """A device, where runs go, and how much work takes long enough there."""

    accelerator: Accelerator
    folder: Path
    side: int
    count: int  # products of the smallest module

    @classmethod
    def prepare(cls, accelerator: Accelerator, folder: Path) -> Workbench:
        """Find out how much work takes long enough."""
        side = _CPU_SIDE if accelerator.is_host else _SIDE
        one = torch.eye(side, device=accelerator.name)
        each_s = time_work(accelerator, lambda: torch.mm(one, one))
        return cls(accelerator, folder, side, max(1, math.ceil(SMALLEST_S / each_s)))

    def record(
        self,
        level: Literal["modules", "ops"] = "modules",
        *,
        steps: int = STEPS,
        wait_s: float = 0.0,
        asks: bool = False,
        copies: bool = False,
        beside: bool = False,
        precision: torch.dtype | None = None,
        read_loss: bool = False,
    ) -> PlantedRun:
        """Train for some steps under the recorder.

        `asks`: a module makes the host wait; `copies`: batches are large; `beside`: they are copied on a
        stream of their own; `read_loss`: the host waits for the device at the end of every step.
        """
        accelerator, device = self.accelerator, self.accelerator.name
        clock = OwnClock(accelerator)
        modules = {
            name: PlantedModule(clock, self.side, self.count * size, asks and name == "middle")
            for name, size in SIZES.items()
        }
        model = nn.Sequential()
        for name, module in modules.items():
            model.add_module(name, module)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        rows = max(self.side, COPY_BYTES // (4 * self.side)) if copies else self.side
        batch = torch.full((rows, self.side), 0.5)
        batch = batch.pin_memory() if accelerator.pins_memory else batch
        loader, copied = PlantedBatches(batch, steps, wait_s), Readings()
        side_stream: Callable[[], Any] = nullcontext
        if beside:
            streams: Any = getattr(torch, accelerator.kind)
            other = streams.Stream()
            side_stream = partial(streams.stream, other)
        half = nullcontext() if precision is None else torch.autocast(accelerator.kind, precision)
        folder = self.folder / f"{len(list(self.folder.iterdir()))}"
        with detscope.Recorder(
            model, optimizer, folder, level=level, warmup_steps=WARMUP, telemetry_hz=0, name="selftest"
        ) as recorder:
            for images in recorder.steps(loader):
                with side_stream(), detscope.phase("transfer"):
                    begin = clock.read_moment()
                    there = images.to(device, non_blocking=True)
                    copied.pairs.append((begin, clock.read_moment()))
                if beside:
                    streams.current_stream().wait_stream(other)
                with half:
                    loss = model(there[: self.side].requires_grad_()).float().mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                if read_loss:
                    loss.item()
        accelerator.wait()
        found = load_run(recorder.run)
        return PlantedRun(found, summarize(found), clock, modules, copied, loader.waits_ms)

    def record_greed(self) -> PlantedRun:
        """A step that runs out of memory: the program's own error comes back out of it."""
        memory = self.accelerator.read_memory()
        size = 2 * memory.total if memory is not None and memory.total else 1 << 50
        model = nn.Sequential()
        model.add_module("greedy", GreedyModule(size))
        model.to(self.accelerator.name)
        folder = self.folder / f"{len(list(self.folder.iterdir()))}"
        loader = PlantedBatches(torch.ones(4), 4, 0.0)
        recorder = detscope.Recorder(model, None, folder, warmup_steps=0, telemetry_hz=0, name="selftest")
        try:
            with recorder:
                for images in recorder.steps(loader):
                    model(images.to(self.accelerator.name))
        except (RuntimeError, MemoryError):
            pass
        found = load_run(recorder.run)
        return PlantedRun(
            found, summarize(found), OwnClock(self.accelerator), {}, Readings(), loader.waits_ms
        )
