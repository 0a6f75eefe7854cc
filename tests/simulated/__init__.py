"""A simulated asynchronous accelerator: torch.cuda works, on any machine, and the truth is known.

    with simulate(cost=my_costs) as simulation:
        model = simulation.watch(Net().to("cuda"))
        ...  # any program, with the real detscope around it
    simulation.truth.find_phase(step=3, name="forward")

Tensors are the CPU's and values are right; what is simulated is where they live (tensors.py), when work is
done (device.py, operators.py), the C side of torch.cuda (surface.py), the engine's thread (engine.py), the
profiler (profiler.py) and the host's clock as the product reads it (clock.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.autograd.variable import Variable

from simulated.clock import HostClock, SleepingClock, product_reads
from simulated.device import COMMUNICATION, Machine
from simulated.engine import DeviceEngine
from simulated.operators import (
    CostFunction,
    DeviceMode,
    Fault,
    OperatorCall,
    install_functions,
    plain_cost,
)
from simulated.profiler import install_profiler
from simulated.surface import Driver, install_autocast, install_surface
from simulated.tensors import TensorSurface
from simulated.truth import Label, Labels, Stretch, Truth

__all__ = [
    "CostFunction",
    "Fault",
    "HostClock",
    "Label",
    "OperatorCall",
    "PlantedLoader",
    "Simulation",
    "SleepingClock",
    "Stretch",
    "plain_cost",
    "simulate",
]
Model = TypeVar("Model", bound=torch.nn.Module)


class Simulation:
    """What a test has to do with: clock, devices, plans and the truth."""

    def __init__(self, machine: Machine, cost: CostFunction, host_cost: CostFunction) -> None:
        self.machine, self.clock = machine, machine.clock
        self.driver = Driver(machine)
        self.labels = Labels(machine)
        self.truth = Truth(machine, self.labels)
        self.surface = TensorSurface(machine)
        self.mode = DeviceMode(machine, self.surface, self.labels, cost, host_cost)
        self.engine = DeviceEngine(Variable._execution_engine, machine, self.labels, self.mode)
        self._communication: dict[int, Any] = {}

    def watch(self, model: Model, prefix: str = "") -> Model:
        """Know a model's modules by their names."""
        self.labels.watch_model(model, prefix)
        return model

    def phase(self, name: str) -> Any:
        """`with simulation.phase("forward"):` what the test calls a phase."""
        return self.labels.phase(name)

    def sleep(self, duration_ns: int) -> None:
        """The host waits for something that is no device."""
        self.clock.sleep(duration_ns)

    def work(self, duration_ns: int) -> None:
        """The host computes."""
        self.clock.spend(duration_ns)

    def plant(self, kind: str, when: Callable[[OperatorCall], bool]) -> None:
        """An "assert" or an out of "memory" at the first operator for which `when` holds."""
        self.mode.faults.append(Fault(kind, when))

    def all_reduce(self, duration_ns: int) -> Callable[[], None]:
        """A collective on a stream of its own; gives the function by which the current stream waits for it.

        As NCCL's process group does: the communication's stream waits for what is queued so far, and `wait`
        makes the caller's stream wait, not the host.
        """
        device = torch.cuda.current_device()
        beside = self._communication.setdefault(device, torch.cuda.Stream(device))
        beside.wait_stream(torch.cuda.current_stream())
        self.mode.follow_node()
        span = self.machine.begin_span("cpu_op", "c10d::allreduce_")
        self.machine.launch(COMMUNICATION, duration_ns, stream=beside.queue)
        self.machine.end_span(span)
        done = beside.record_event()
        return lambda: torch.cuda.current_stream().wait_event(done)


class PlantedLoader:
    """Batches that take planted times to come; asking for one begins a step."""

    def __init__(self, simulation: Simulation, batches: Any, wait_ns: Callable[[int], int] | int = 0) -> None:
        self._simulation, self._batches, self._wait_ns = simulation, list(batches), wait_ns

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches):
            self._simulation.labels.begin_step()
            with self._simulation.phase("data"):
                wait_ns = self._wait_ns(number) if callable(self._wait_ns) else self._wait_ns
                self._simulation.sleep(wait_ns)
            yield batch
        self._simulation.labels.begin_step()  # the last one ends


@contextmanager
def simulate(
    devices: int = 1,
    *,
    cost: CostFunction = plain_cost,
    host_cost: CostFunction = lambda _call: 3_000,
    clock: HostClock | None = None,
    **machine: Any,
) -> Iterator[Simulation]:
    """Run what follows on a simulated machine; everything is put back afterwards."""
    made = Simulation(Machine(devices, clock=clock, **machine), cost, host_cost)
    lifts = torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(owner, name, value, create=True))

        stack.callback(made.engine.worker.end)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor(..., device=) asks C++ for the device
        install_surface(made.machine, made.driver, put)
        install_autocast(put)
        made.surface.install(put)
        install_functions(made.mode, put)
        install_profiler(made.machine, put)
        put(Variable, "_execution_engine", made.engine)
        stack.enter_context(product_reads(made.clock))
        stack.enter_context(made.labels.follow_modules())
        stack.enter_context(made.mode)
        yield made
