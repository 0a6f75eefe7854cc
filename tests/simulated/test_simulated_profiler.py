"""The simulated session of torch.profiler gives events as Kineto does, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity

from simulated import Simulation, simulate
from simulated.networks import Chain
from simulated.operators import ENGINE
from simulated.profiler import CLOCK_OFFSET_NS

MS = 1_000_000
BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with simulate(devices=2) as made:
        torch.cuda.init()
        yield made


def profile_step(activities: Any = BOTH, **options: Any) -> list[Any]:
    model = Chain().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(1, 3, 8, 8).pin_memory()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, **options) as session:
        with torch.profiler.record_function("forward"):
            loss = model(x.to("cuda", non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
    return list(session.profiler.kineto_results.events())


def named(events: list[Any], name: str) -> list[Any]:
    return [event for event in events if event.name() == name]


def test_what_an_operator_launched_bears_its_number(simulation: Simulation) -> None:
    events = profile_step()
    operators = named(events, "aten::convolution")
    kernels = named(events, "convolution_kernel")
    assert len(operators) == len(kernels) == 3
    for operator, kernel in zip(operators, kernels, strict=True):
        assert kernel.linked_correlation_id() == operator.correlation_id()
        calls = [one for one in events if one.activity_type() == "cuda_runtime"]
        [call] = [one for one in calls if one.correlation_id() == kernel.correlation_id()]
        assert (call.name(), call.linked_correlation_id()) == ("cudaLaunchKernel", operator.correlation_id())
        assert operator.start_ns() < call.start_ns()
        assert call.end_ns() <= operator.end_ns()
        assert call.end_ns() <= kernel.start_ns()
        assert kernel.duration_ns() == 200_000
        assert (kernel.device_index(), kernel.device_resource_id()) == (0, 0)
        assert call.start_thread_id() != operator.start_thread_id(), "one is the system's, the other torch's"
    assert operators[0].start_ns() - CLOCK_OFFSET_NS < simulation.clock.now()


def test_backward_is_nodes_with_the_numbers_of_their_makers_in_another_thread(
    simulation: Simulation,
) -> None:
    events = profile_step()
    nodes = named(events, f"{ENGINE}ConvolutionBackward0")
    numbers = [node.sequence_nr() for node in nodes]
    assert len(numbers) == 3
    assert numbers == sorted(numbers, reverse=True)
    [forward] = {event.start_thread_id() for event in named(events, "aten::convolution")}
    assert {node.start_thread_id() for node in nodes}.isdisjoint({forward})
    for operator in named(events, "aten::convolution_backward"):
        inside = [one for one in nodes if one.start_ns() <= operator.start_ns() < one.end_ns()]
        assert len(inside) == 1
        assert operator.end_ns() <= inside[0].end_ns()
    assert named(events, f"{ENGINE}torch::autograd::AccumulateGrad")
    assert simulation.engine.threads


def test_spans_of_people_and_of_optimizers_are_heard(simulation: Simulation) -> None:
    events = profile_step()
    [mine] = [one for one in named(events, "forward") if one.activity_type() == "user_annotation"]
    [shadow] = [one for one in named(events, "forward") if one.activity_type() == "gpu_user_annotation"]
    assert mine.is_user_annotation() and shadow.is_user_annotation()
    assert shadow.device_type() == DeviceType.CUDA
    inside = [one for one in events if one.name() == "aten::convolution"]
    assert all(mine.start_ns() < one.start_ns() and one.end_ns() < mine.end_ns() for one in inside)
    assert named(events, "Optimizer.step#SGD.step")
    assert simulation.machine.spans


def test_only_the_host_is_heard_if_nothing_else_is_asked_for(simulation: Simulation) -> None:
    events = profile_step([ProfilerActivity.CPU])
    assert {event.activity_type() for event in events} == {"cpu_op", "user_annotation"}
    assert simulation.clock.now() < simulation.machine.log[-1].end_ns, "and nobody waits for the device"


def test_work_of_before_leaks_in_and_that_of_another_device_is_lost(simulation: Simulation) -> None:
    torch.cuda._sleep(5 * MS)
    with torch.profiler.profile(activities=BOTH) as session, torch.cuda.device(1):
        torch.cuda._sleep(50 * MS)
    spins = named(session.profiler.kineto_results.events(), "spin_kernel")
    assert [(one.device_index(), one.linked_correlation_id()) for one in spins] == [(0, 0)]
    assert simulation.machine.log[-1].device == 1


def test_copies_and_waits_are_events(simulation: Simulation) -> None:
    config = _ExperimentalConfig(enable_cuda_sync_events=True)
    with torch.profiler.profile(activities=BOTH, experimental_config=config) as session:
        torch.randn(4).to("cuda").sum().item()
    events = session.profiler.kineto_results.events()
    copies = [one.name() for one in events if one.activity_type() == "gpu_memcpy"]
    assert copies == ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"]
    assert [one.activity_type() for one in named(events, "Stream Synchronize")] == ["cuda_sync"] * 2
    assert len(named(events, "cudaStreamSynchronize")) == 2
    assert simulation.machine.calls


@pytest.mark.parametrize("asked", [True, False])
def test_sizes_of_launches_have_to_be_asked_for(simulation: Simulation, asked: bool) -> None:
    try:
        config = _ExperimentalConfig(expose_kineto_event_metadata=asked)
    except TypeError:
        pytest.skip(f"torch {torch.__version__} does not know the option")
    events = profile_step(experimental_config=config)
    [first, *_] = named(events, "convolution_kernel")
    assert ('"blocks per SM": 1.0' in first.metadata_json()) == asked
    assert simulation.machine.log


def test_an_older_torch_does_not_say_what_an_event_is(simulation: Simulation) -> None:
    simulation.machine.profiler_tells_kinds = False
    assert not any(hasattr(event, "activity_type") for event in profile_step())
