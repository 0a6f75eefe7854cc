"""Trainings whose truth is planted: what limits each, and a loop that shows it.

Every case trains `Chain` (backbone, neck, head) in a loop as people write it. The costs of its operators are
chosen so that one thing decides; `record_case` runs it with the real recorder around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed

import detscope
from detscope.record.recorder import Recorder
from detscope.record.script.hooks import Hooks
from detscope.record.script.options import make_options
from detscope.record.script.tracker import ScriptTracker
from simulated import OperatorCall, PlantedLoader, Simulation, simulate
from simulated.networks import Chain

MS = 1_000_000
Level = Literal["phases", "modules", "ops"]


@dataclass(frozen=True)
class Case:
    """One training: its costs, its loop and what has to come out."""

    name: str
    bound: str | None  # the word for what limits it; None: nothing is told
    module_ns: int = 2 * MS  # a convolution forward; twice that backward
    small_ns: int = 20_000  # every other operator
    host_ns: int = 3_000  # of the host for an operator
    wait_ns: int = 0  # for a batch
    steps: int = 18
    device: str = "cuda:0"
    devices: int = 1
    check: bool = False  # the model looks at values in its forward
    precision: Literal["fp32", "fp16"] = "fp32"
    accumulate: int = 1
    exchange_ns: int = 0  # of each of three buckets
    hides: bool = True  # whether communication runs beside backward, or after it
    loop: Literal["plain", "prefetched", "captured"] = "plain"
    fault: tuple[str, int] | None = None  # kind and step
    paths: tuple[str, ...] = ("backbone", "neck", "head")

    def cost(self, call: OperatorCall) -> int:
        """Of the device, for an operator."""
        if "convolution" in call.name:
            return 2 * self.module_ns if call.label.direction == "backward" else self.module_ns
        return self.small_ns


CASES = {
    case.name: case
    for case in (
        Case("device-bound", "device-bound"),
        Case("host-bound", "host-bound", module_ns=100_000, small_ns=40_000, host_ns=MS),
        Case("synchronisation in forward", "device-bound", check=True),
        Case("hidden data wait", "device-bound", wait_ns=12 * MS),
        Case("exposed data wait", "input-bound", wait_ns=40 * MS),
        Case("side-stream prefetcher", "device-bound", loop="prefetched"),
        Case("fp16 with a scaler", "device-bound", precision="fp16"),
        Case("gradient accumulation", "device-bound", accumulate=4, steps=24),
        Case("hidden communication", "device-bound", exchange_ns=2 * MS),
        Case(
            "exposed communication",
            "communication-bound",
            exchange_ns=8 * MS,
            hides=False,
        ),
        Case("another device", "device-bound", device="cuda:1", devices=2),
        Case("graph capture", "device-bound", loop="captured"),
        Case("device-side assert", "device-bound", fault=("assert", 13)),
        Case("out of memory", "device-bound", fault=("memory", 13)),
    )
}


@dataclass
class Recorded:
    """A case that has run."""

    case: Case
    simulation: Simulation
    folder: Path
    error: BaseException | None = None  # with which the loop ended
    losses: list[float] = field(default_factory=list)


class Silence(nullcontext[Any]):
    """Nobody listens: the same loop without a recorder."""

    def __enter__(self) -> Silence:
        return self

    def steps(self, loader: Any) -> Iterator[Any]:
        yield from loader


class Training:
    """The loop of a case, step by step."""

    def __init__(self, case: Case, simulation: Simulation) -> None:
        self.case, self.simulation = case, simulation
        torch.manual_seed(0)
        self.model = simulation.watch(Chain().to(case.device))
        self.model.check = case.check
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cuda", enabled=case.precision == "fp16")
        self.late: list[torch.Tensor] = []  # losses, read when all is done
        self._exchanges: list[Callable[[], None]] = []
        if case.exchange_ns:
            for path in case.paths:
                weight = dict(self.model.named_parameters())[f"{path}{'.0' * (path == 'backbone')}.weight"]
                weight.register_post_accumulate_grad_hook(self._exchange)

    def _exchange(self, parameter: torch.Tensor) -> None:
        """As DDP does: a bucket is ready; when backward has ended, the stream waits for all of them."""
        if self.case.hides:
            self._exchanges.append(self.simulation.all_reduce(self.case.exchange_ns))
        if parameter is self.model.backbone[0].weight:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_exchange)

    def _finish_exchange(self) -> None:
        if not self.case.hides:
            self._exchanges = [self.simulation.all_reduce(self.case.exchange_ns) for _ in self.case.paths]
        while self._exchanges:
            self._exchanges.pop(0)()

    def make_loader(self) -> PlantedLoader:
        batches = [torch.randn(2, 3, 8, 8).pin_memory() for _ in range(self.case.steps)]
        return PlantedLoader(self.simulation, batches, self.case.wait_ns)

    def move(self, batch: torch.Tensor) -> torch.Tensor:
        with self.simulation.phase("transfer"), detscope.phase("transfer"):
            return batch.to(self.case.device, non_blocking=True)

    def run_step(self, number: int, x: torch.Tensor) -> None:
        simulation, case = self.simulation, self.case
        half = torch.autocast("cuda", torch.float16) if case.precision == "fp16" else nullcontext()
        with simulation.phase("forward"):  # with the loss, though that is no module
            with half:
                out = self.model(x)
            loss = self.scaler.scale(out.float().mean())
            beginning = torch.ones_like(loss)  # which backward would make before the engine begins
        loss.backward(beginning)
        if (number + 1) % case.accumulate == 0:
            with simulation.phase("optimizer"):  # found without being told
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad(set_to_none=False)
        self.late.append(loss.detach().to("cpu", non_blocking=True))

    def run(self, listener: Any) -> None:
        getattr(self, f"_run_{self.case.loop}")(listener)

    def _run_plain(self, listener: Any) -> None:
        for number, batch in enumerate(listener.steps(self.make_loader())):
            self.run_step(number, self.move(batch))

    def _run_prefetched(self, listener: Any) -> None:
        """As `DataPrefetcher`s do: the batch is copied on a stream of its own, the model's waits for it."""
        side = torch.cuda.Stream(self.case.device)
        for number, batch in enumerate(listener.steps(self.make_loader())):
            with torch.cuda.stream(side):
                x = self.move(batch)
            torch.cuda.current_stream(self.case.device).wait_stream(side)
            self.run_step(number, x)

    def _run_captured(self, listener: Any) -> None:
        """The whole step as a graph: copies into its input, and replays."""
        device = self.case.device
        static = torch.zeros(2, 3, 8, 8, device=device)
        beside = torch.cuda.Stream(device)
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside):
            self._compute_gradients(static)
        torch.cuda.current_stream(device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute_gradients(static)
        for batch in listener.steps(self.make_loader()):
            with self.simulation.phase("transfer"), detscope.phase("transfer"):
                static.copy_(batch, non_blocking=True)
            graph.replay()
            with self.simulation.phase("optimizer"):
                self.optimizer.step()

    def _compute_gradients(self, x: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.model(x).mean().backward()


@contextmanager
def join_ranks() -> Iterator[None]:
    """A program of several ranks, of which this is one; what it exchanges is planted."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def run_case(case: Case, listen: Callable[[Training], Any]) -> tuple[Simulation, Training, Any]:
    """Run a case; `listen` gives the recorder, as a context, that is put around its loop."""
    host_cost: Callable[[OperatorCall], int] = lambda _call: case.host_ns  # noqa: E731
    # about as many launches ahead as two steps have: real models have thousands in each
    options: dict[str, Any] = {"host_cost": host_cost, "queue_length": 60}
    with simulate(case.devices, cost=case.cost, **options) as simulation:
        training = Training(case, simulation)
        if case.fault is not None:
            kind, step = case.fault
            # in the middle of a forward, where a wrong label or a large image would be
            simulation.plant(
                kind,
                lambda call: call.label.step == step and call.label.module == "neck" and "conv" in call.name,
            )
        with join_ranks() if case.exchange_ns else nullcontext(), listen(training) as listener:
            training.run(listener)
        torch.cuda.synchronize(case.device)
    return simulation, training, listener


def record_case(case: Case, level: Level, out: Path, kind: type[Recorder] = Recorder) -> Recorded:
    """Run a case with the recorder around its loop; a loop that fails has its run all the same."""
    made: list[tuple[Training, Recorder]] = []

    def listen(training: Training) -> Recorder:
        options: dict[str, Any] = {"warmup_steps": 2, "ops_steps": 3, "telemetry_hz": 0, "name": "chain"}
        recorder = kind(training.model, training.optimizer, out, level=level, **options)
        made.append((training, recorder))
        return recorder

    error: BaseException | None = None
    try:
        run_case(case, listen)
    except RuntimeError as caught:
        error = caught
    training, recorder = made[0]
    with suppress(RuntimeError):
        training.simulation.surface.settle_copies()
    losses = [one.item() for one in training.late]
    return Recorded(case, training.simulation, recorder.run, error, losses)


class ScriptListener:
    """What `detscope run` puts around a script, around a loop: nobody tells it where steps begin."""

    def __init__(self, out: Path, level: Level) -> None:
        self.tracker = ScriptTracker(make_options(out=out, script="loop.py", level=level))
        self._hooks = Hooks(self.tracker)
        self.run: Path | None = None

    def __enter__(self) -> ScriptListener:
        self._hooks.install()
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        self.run = self.tracker.close_run(error)
        self._hooks.remove()
        if self.tracker.recording.failure:
            raise self.tracker.recording.failure

    def steps(self, loader: Any) -> Iterator[Any]:
        yield from loader


def listen_to_case(case: Case, level: Level, out: Path) -> Recorded:
    """Run a case as a script that knows nothing of us."""
    simulation, training, listener = run_case(case, lambda _training: ScriptListener(out, level))
    return Recorded(case, simulation, listener.run, losses=[one.item() for one in training.late])
