"""The simulated device keeps the contract of a real one: torch's headers and documents say which."""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from simulated import OperatorCall, PlantedLoader, Simulation, SleepingClock, simulate
from simulated.device import SPAN_NS
from simulated.networks import Chain, YoloLike, make_batch, make_detector, move_batch, yolo_loss

MS = 1_000_000


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with simulate() as made:
        yield made


def spin(duration_ns: int) -> None:
    torch.cuda._sleep(duration_ns)


# ---- events: torch/include/c10/cuda/CUDAEvent.h


def test_an_event_is_not_passed_before_the_device_has_done_what_was_queued(simulation: Simulation) -> None:
    event = torch.cuda.Event()
    assert event.query(), "one that was never recorded has passed"
    spin(3 * MS)
    event.record()
    assert not event.query()
    simulation.work(2 * MS)
    assert not event.query()
    simulation.work(2 * MS)
    assert event.query()


def test_a_loop_that_asks_an_event_again_and_again_ends(simulation: Simulation) -> None:
    spin(MS)
    event = torch.cuda.current_stream().record_event()
    asked = 0
    while not event.query():
        asked += 1
    assert 0 < asked <= MS // simulation.machine.query_ns


def test_times_between_events_are_those_of_the_device(simulation: Simulation) -> None:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    spin(5 * MS)
    last.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        first.elapsed_time(last)
    last.synchronize()
    assert simulation.clock.now() == last.mark.moment_ns, "the host waited to the moment"
    assert first.elapsed_time(last) == pytest.approx(5, rel=0.01)


def test_events_without_timing_or_record_have_no_times(simulation: Simulation) -> None:
    timed, plain = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
    timed.record()
    plain.record()
    simulation.work(MS)
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed.elapsed_time(plain)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_long_times_between_events_are_coarse(simulation: Simulation) -> None:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    simulation.sleep(1000 * 1000 * MS + 12_500)
    last.record()
    simulation.work(MS)
    assert abs(first.elapsed_time(last) * 1e6 - (last.mark.moment_ns - first.mark.moment_ns)) > 10_000


def test_an_event_of_one_device_is_not_recorded_on_another() -> None:
    with simulate(devices=2):
        event = torch.cuda.Event()
        event.record()
        with pytest.raises(RuntimeError, match="does not match recording stream's device"):
            event.record(torch.cuda.current_stream(1))


def test_a_record_costs_the_host_what_was_planted() -> None:
    with simulate(record_ns=7_000) as simulation:
        torch.cuda.init()
        before = simulation.clock.now()
        torch.cuda.Event().record()
        assert simulation.clock.now() - before == 7_000


# ---- streams


def test_streams_run_beside_each_other_unless_one_waits(simulation: Simulation) -> None:
    side = torch.cuda.Stream()
    spin(4 * MS)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        spin(MS)
    main, beside = simulation.machine.log
    assert beside.end_ns < main.end_ns
    side.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(side):
        spin(MS)
    assert simulation.machine.log[-1].start_ns >= main.end_ns
    assert torch._C._cuda_getCurrentRawStream(0) == 0 != side.cuda_stream


def test_each_thread_has_its_own_stream_and_device() -> None:
    with simulate(devices=2):
        torch.cuda.set_device(1)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_device()))
        thread.start()
        thread.join()
        assert (torch.cuda.current_device(), found) == (1, [0])


# ---- reads and copies


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: torch.where(x > 0),
        lambda x: repr(x),
    ],
)
def test_a_read_by_the_host_waits_for_the_device(
    simulation: Simulation, read: Callable[[torch.Tensor], Any]
) -> None:
    x = torch.randn(8).to("cuda")
    spin(20 * MS)
    end_ns = simulation.machine.log[-1].end_ns
    assert simulation.clock.now() < end_ns
    read(x)
    assert simulation.clock.now() >= end_ns
    assert simulation.machine.calls[-1].name == "cudaStreamSynchronize"


def test_suppression_of_boxes_makes_the_host_wait(simulation: Simulation) -> None:
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [1.0, 1.0, 9.0, 9.0]], device="cuda")
    scores = torch.tensor([0.9, 0.8], device="cuda")
    spin(20 * MS)
    kept = nms(boxes, scores, 0.5)
    assert simulation.clock.now() >= simulation.machine.log[-1].end_ns
    assert kept.device == torch.device("cuda", 0)
    assert kept.tolist() == [0]


def test_operators_and_views_make_nobody_wait(simulation: Simulation) -> None:
    x = torch.randn(8, 8).to("cuda")
    before = len(simulation.machine.log)
    for _ in range(10):
        x.view(64).t().unsqueeze(0).detach()
    assert len(simulation.machine.log) == before, "views are no work of the device"
    begin_ns = simulation.clock.now()
    y = (x @ x).relu()
    assert [one.end_ns - one.start_ns for one in simulation.machine.log[before:]] == [200_000, 10_000]
    assert simulation.clock.now() - begin_ns == 2 * (3_000 + simulation.machine.launch_ns + 2 * SPAN_NS)
    assert y.is_cuda


def test_an_asynchronous_copy_fills_its_buffer_late(simulation: Simulation) -> None:
    x = torch.arange(4.0).to("cuda")
    spin(MS)
    arrived = x.to("cpu", non_blocking=True)
    assert arrived.is_pinned()
    assert all(value != value for value in arrived.tolist()), "it holds no values yet"
    simulation.work(2 * MS)
    assert arrived.tolist() == [0, 1, 2, 3]
    kept = torch.zeros(4).pin_memory()
    x += 1
    spin(MS)
    kept.copy_(x, non_blocking=True)
    assert kept.tolist() == [0, 0, 0, 0], "the old values stand there"
    torch.cuda.synchronize()
    assert kept.tolist() == [1, 2, 3, 4]


def test_only_pinned_memory_is_copied_without_the_host(simulation: Simulation) -> None:
    data = torch.zeros(3 << 20)
    pinned = data.pin_memory()
    taken = {}
    for name, source, non_blocking in (
        ("waits", pinned, False),
        ("stages", data, True),
        ("goes on", pinned, True),
    ):
        torch.cuda.synchronize()
        spin(20 * MS)
        begin_ns = simulation.clock.now()
        source.to("cuda", non_blocking=non_blocking)
        taken[name] = simulation.clock.now() - begin_ns
    assert taken["waits"] > 20 * MS
    assert MS < taken["stages"] < 3 * MS, "the driver's buffer is filled by the host"
    assert taken["goes on"] < MS // 10


def test_tensors_say_where_they_live() -> None:
    with simulate(devices=2):
        host = torch.zeros(2)
        there = host.to("cuda:1")
        assert (str(host.device), str(there.device), str((there + 1)[0].device)) == (
            "cpu",
            "cuda:1",
            "cuda:1",
        )
        assert (there.is_cuda, there.is_cpu, there.get_device(), host.get_device()) == (True, False, 1, -1)
        assert there.to("cuda:1") is there
        assert there.cpu().is_cpu
        assert str(there.to(host).device) == "cpu"
        for made in (
            torch.zeros(3, device="cuda"),
            torch.tensor([1.0], device="cuda"),
            torch.randperm(3, device="cuda"),
            torch.as_tensor([1, 2], device="cuda"),
            host.new_zeros(3, device="cuda"),
            host.cuda().new_tensor([1.0]),
            host.cuda(),
        ):
            assert str(made.device) == "cuda:0"
        assert str(torch.zeros_like(there).device) == "cuda:1"
        model = copy.deepcopy(nn.Linear(2, 2).to("cuda:1"))
        assert {str(one.device) for one in model.parameters()} == {"cuda:1"}
        model(there).sum().backward()
        assert str(next(model.parameters()).grad.device) == "cuda:1"
        with pytest.raises(TypeError, match="cuda:1 device type tensor to numpy"):
            there.numpy()
        assert "device='cuda:1'" in repr(there)
    assert host.device.type == there.device.type == "cpu", "everything is put back"


def test_memory_is_counted_and_ends_where_it_was_planted_to() -> None:
    with simulate(capacity=(300 << 20) + (64 << 20)):
        x = torch.zeros(4 << 20, device="cuda")
        assert torch.cuda.memory_allocated() == 16 << 20
        y = x + 1
        del x
        assert torch.cuda.memory_allocated() == 16 << 20
        assert torch.cuda.max_memory_allocated() == 32 << 20
        assert torch.cuda.memory_reserved() == 32 << 20
        free, total = torch.cuda.mem_get_info()
        assert (total, free) == ((300 << 20) + (64 << 20), 32 << 20)
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 64\.00 MiB"):
            torch.cat([y, y, y, y])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_reserved() == torch.cuda.max_memory_allocated() == 16 << 20
        assert (
            sum(block["size"] for one in torch.cuda.memory_snapshot() for block in one["blocks"]) == 16 << 20
        )


# ---- errors that stay: torch/include/c10/cuda/CUDAException.h


def test_a_failed_assert_comes_late_and_stays(simulation: Simulation) -> None:
    x = torch.zeros(4, device="cuda")
    spin(MS)
    simulation.plant("assert", lambda call: call.name == "aten::gather")
    y = x.gather(0, torch.zeros(1, dtype=torch.long, device="cuda"))
    z = y + 1  # the host does not know yet
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    with pytest.raises(RuntimeError, match="CUDA error: device-side assert triggered") as caught:
        z.item()
    assert type(caught.value) is getattr(torch, "AcceleratorError", RuntimeError)
    for call in (torch.cuda.synchronize, event.query, event.record, event.synchronize, lambda: z * 2):
        with pytest.raises(RuntimeError, match="device-side assert triggered"):
            call()
    assert torch.cuda.memory_allocated() > 0, "the allocator's own figures can be read"


def test_an_out_of_memory_can_be_planted_and_passes(simulation: Simulation) -> None:
    x = torch.zeros(4, device="cuda")
    simulation.plant("memory", lambda call: call.name == "aten::mul")
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        x * 2
    assert (x * 2).tolist() == [0, 0, 0, 0]


# ---- captures: torch/cuda/graphs.py, CUDA's manual on stream capture


def capture(body: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def test_a_captured_graph_runs_when_it_is_replayed(simulation: Simulation) -> None:
    x = torch.ones(4, device="cuda")
    y = torch.zeros(4, device="cuda")

    def body() -> None:
        assert torch.cuda.is_current_stream_capturing()
        y.copy_(x * 3)

    before = len(simulation.machine.log)
    graph = capture(body)
    assert len(simulation.machine.log) == before, "nothing ran"
    assert not torch.cuda.is_current_stream_capturing()
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [15, 15, 15, 15]
    names = [one.name for one in simulation.machine.log[before:] if one.kind == "kernel"]
    assert names == ["fill__kernel", "mul_kernel"]


@pytest.mark.parametrize("what", ["synchronize", "query", "item", "copy"])
def test_an_unsafe_call_breaks_a_capture(simulation: Simulation, what: str) -> None:
    x = torch.ones(4, device="cuda")
    event = torch.cuda.Event()
    event.record()
    calls = {
        "synchronize": torch.cuda.synchronize,
        "query": event.query,
        "item": lambda: x.sum().item(),
        "copy": lambda: x.to("cpu", non_blocking=True),
    }

    def body() -> None:
        with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
            calls[what]()

    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture(body)
    assert simulation.machine.capture is None
    torch.cuda.synchronize()


def test_a_query_of_another_thread_breaks_a_capture_too(simulation: Simulation) -> None:
    event = torch.cuda.Event()
    event.record()

    def body() -> None:
        failures: list[Exception] = []

        def ask() -> None:
            try:
                event.query()
            except RuntimeError as error:
                failures.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert failures

    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture(body)
    assert not simulation.machine.devices[0].streams[1].capture


def test_events_of_a_capture_cannot_be_asked(simulation: Simulation) -> None:
    event = torch.cuda.Event(enable_timing=True)
    capture(event.record)
    for ask in (event.query, event.synchronize, lambda: event.elapsed_time(event)):
        with pytest.raises(RuntimeError, match="last recorded in a capturing stream"):
            ask()
    event.record()
    simulation.work(MS)
    assert event.query(), "recorded anew it is an event as any other"


def test_the_default_stream_cannot_be_captured(simulation: Simulation) -> None:
    torch.cuda.init()
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    assert simulation.machine.capture is None


# ---- the driver: torch/cuda/__init__.py


def test_devices_are_those_visible_when_the_driver_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with simulate(devices=3) as simulation:
        assert torch.cuda.device_count() == 2
        assert simulation.driver.started_by is None, "counting asks NVML"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
        assert torch.cuda.is_available()
        assert "test_devices_are_those_visible" in " ".join(simulation.driver.started_by or [])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert torch.cuda.device_count() == 2, "NVML still answers by what the variable says"
        torch.cuda.init()
        assert torch._C._cuda_getDeviceCount() == 1  # device_count of older versions asks NVML all the same
        assert str(torch.cuda.get_device_properties(0).uuid).endswith("2")
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.zeros(1, device="cuda:1")


@pytest.mark.parametrize(("value", "count"), [("", 0), ("-1", 0), ("0,9,1", 1), ("GPU-0000", 2)])
def test_words_of_visible_devices(monkeypatch: pytest.MonkeyPatch, value: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with simulate(devices=2):
        assert torch.cuda.is_available() == (count > 0)
        assert torch.cuda.device_count() == count


def run_forked(body: Callable[[], None]) -> str:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is known
        child = os.fork()
    if not child:
        try:
            body()
            text = "fine"
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_a_forked_child_can_use_a_driver_that_was_not_started(simulation: Simulation) -> None:
    assert run_forked(lambda: print(end=str(torch.zeros(1, device="cuda"))[:0])) == "fine"
    assert simulation.driver.started_by is None


def test_a_forked_child_cannot_use_a_driver_that_was_started(simulation: Simulation) -> None:
    assert torch.cuda.is_available()
    told = run_forked(lambda: torch.cuda.init())
    assert told.startswith("RuntimeError: Cannot re-initialize CUDA in forked subprocess")
    assert simulation.driver.started_by is not None


def test_everything_is_put_back() -> None:
    before = (torch.cuda.Event, torch.cuda.is_available(), torch.cuda._initialized, torch.profiler.profile)
    with pytest.raises(KeyError), simulate():
        torch.zeros(1, device="cuda")
        raise KeyError
    assert before == (
        torch.cuda.Event,
        torch.cuda.is_available(),
        torch.cuda._initialized,
        torch.profiler.profile,
    )
    assert "device" not in vars(torch.Tensor)


# ---- training


def test_backward_runs_in_another_thread_and_its_work_is_the_modules(simulation: Simulation) -> None:
    model = simulation.watch(Chain().to("cuda"))
    seen: list[int] = []
    model.neck.weight.register_hook(lambda _gradient: seen.append(threading.get_ident()))
    loader = PlantedLoader(simulation, [torch.randn(1, 3, 8, 8)] * 2)
    for batch in loader:
        with simulation.phase("forward"):
            loss = model(batch.to("cuda")).sum()
        loss.backward()
    assert seen and threading.get_ident() not in seen
    for path, busy in {"backbone": 210_000, "neck": 200_000, "head": 200_000}.items():
        assert simulation.truth.find_module(0, path).busy_ns == busy
        assert simulation.truth.find_module(0, path, "backward").busy_ns == busy
        # gradients of the first step are there: adding to them is a kernel per parameter
        assert simulation.truth.find_module(1, path, "backward").busy_ns == busy + 20_000


def test_an_error_of_backward_reaches_the_caller(simulation: Simulation) -> None:
    x = torch.zeros(2, device="cuda", requires_grad=True)

    def fail(_gradient: torch.Tensor) -> None:
        raise ZeroDivisionError("in a hook")

    x.register_hook(fail)
    with pytest.raises(ZeroDivisionError, match="in a hook"):
        (x * 2).sum().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        x.detach().sum().backward()
    assert simulation.engine.threads


def test_recomputed_work_is_told_apart(simulation: Simulation) -> None:
    from torch.utils.checkpoint import checkpoint

    model = simulation.watch(Chain().to("cuda"))
    for batch in PlantedLoader(simulation, [torch.randn(1, 3, 8, 8)]):
        x = batch.to("cuda")
        hidden = checkpoint(model.backbone, x, use_reentrant=False)
        model.head(model.neck(hidden)).sum().backward()
    truth = simulation.truth
    assert truth.find_module(0, "backbone").busy_ns == 210_000
    assert truth.find_module(0, "backbone", "recompute").busy_ns == 210_000
    assert truth.find_module(0, "backbone", "backward").busy_ns == 210_000


def train(model: nn.Module, device: str, steps: int, lose: Callable[[nn.Module, Any], Any]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = lose(model, move_batch(make_batch(seed=step), device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def lose_detector(model: nn.Module, batch: Any) -> torch.Tensor:
    return sum(model(*batch).values())


def lose_yolo(model: nn.Module, batch: Any) -> torch.Tensor:
    images, targets = batch
    return yolo_loss(model(torch.stack(images)), torch.stack([one["boxes"] for one in targets]) / 64)


@pytest.mark.parametrize(("make", "lose"), [(make_detector, lose_detector), (YoloLike, lose_yolo)])
def test_training_gives_the_losses_of_the_plain_cpu(
    make: Callable[[], nn.Module], lose: Callable[[nn.Module, Any], Any]
) -> None:
    torch.manual_seed(0)
    model = make()
    plain = train(copy.deepcopy(model).train(), "cpu", 3, lose)
    with simulate() as simulation:
        torch.manual_seed(0)
        found = train(copy.deepcopy(model).train().to("cuda"), "cuda", 3, lose)
        waits = [one for one in simulation.machine.calls if one.name == "cudaStreamSynchronize"]
        assert waits
        assert {one.stream for one in simulation.machine.log} == {0}
    assert found == plain


def test_mixed_precision_with_a_scaler_runs(simulation: Simulation) -> None:
    model = Chain().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        assert torch.is_autocast_enabled("cuda")
        out = model(torch.randn(1, 3, 8, 8, device="cuda"))
    assert out.dtype == torch.float16
    assert not torch.is_autocast_enabled("cpu")
    scaler.scale(out.float().sum()).backward()
    before = len(simulation.machine.calls)
    scaler.step(optimizer)
    waits = [one.name for one in simulation.machine.calls[before:]]
    assert "cudaStreamSynchronize" in waits, "a scaler reads whether something was infinite"
    scaler.update()


def test_collectives_run_beside_the_work_until_they_are_waited_for(simulation: Simulation) -> None:
    torch.cuda.init()
    spin(2 * MS)
    wait = simulation.all_reduce(5 * MS)
    spin(3 * MS)
    wait()
    spin(MS)
    first, exchange, beside, after = simulation.machine.log
    assert exchange.name.startswith("ncclDevKernel_AllReduce")
    assert exchange.stream != first.stream
    assert exchange.start_ns == first.end_ns
    assert beside.start_ns < exchange.end_ns == after.start_ns


def test_a_clock_that_sleeps_gives_the_same_answers() -> None:
    with simulate(clock=SleepingClock()) as simulation:
        x = torch.arange(3.0).to("cuda")
        for times in count(1):
            spin(30 * times * MS)
            event = torch.cuda.current_stream().record_event()
            copied = x.to("cpu", non_blocking=True)
            is_over = event.query()
            begin_ns = simulation.clock.now()
            if begin_ns < event.mark.moment_ns:  # else this thread was stopped for longer than the work takes
                break
        assert not is_over
        event.synchronize()
        assert simulation.clock.now() >= event.mark.moment_ns > begin_ns
        torch.cuda.synchronize()
        assert copied.tolist() == [0, 1, 2]


def test_costs_are_planted_by_operator_and_place() -> None:
    def cost(call: OperatorCall) -> int:
        return 7 * MS if call.label.module == "neck" and "convolution" in call.name else 1_000

    with simulate(cost=cost) as simulation:
        model = simulation.watch(Chain().to("cuda"))
        for batch in PlantedLoader(simulation, [torch.randn(1, 3, 8, 8).pin_memory()], wait_ns=4 * MS):
            model(batch.to("cuda", non_blocking=True)).sum().backward()
        truth = simulation.truth
        assert truth.find_module(0, "neck").busy_ns == 7 * MS
        assert truth.find_module(0, "neck", "backward").busy_ns == 7 * MS
        assert truth.find_module(0, "head").busy_ns == 1_000
        assert truth.find_data_wait(0) == 4 * MS
        whole = truth.find_step(0)
        assert whole.wall_ns == whole.busy_ns + whole.idle_ns
