"""A CUDA run at level ops: events as the profiler hands them over, to rows and to figures. No GPU needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch

from detscope.analyze.device.figures import device_figures
from detscope.machine.accelerator import Accelerator
from detscope.machine.profiling import make_session
from detscope.record.operators.attribution import AUTOGRAD, StepSpan, attribute_operators, make_device_tables
from detscope.record.operators.events import find_role, read_profiler_events
from detscope.record.operators.profiler import OperatorWindow
from detscope.record.steps.nodes import NodeTable
from detscope.runs.writer import polars_schema
from profiler_events import US, OldProfilerEvent, ProfilerEvent, make_older

LAUNCH_SIZES = '"queued": 0, "device": 0, "blocks per SM": 1.5, "est. achieved occupancy %": 34'
STREAM = 7


def made(kind: str, label: str, start_us: int, wall_us: int, **more: Any) -> ProfilerEvent:
    """Times in us; the profiler's clock is not the recorder's."""
    more.setdefault("thread", STREAM if "gpu" in kind or kind == "kernel" else 1)
    return ProfilerEvent(kind, label, (start_us + 500_000) * US, wall_us * US, **more)


@pytest.fixture
def nodes() -> NodeTable:
    table = NodeTable()
    table.add_node("module", "", "Net")
    table.add_node("module", "backbone", "Conv2d", stage="backbone")
    return table


def one_step(nodes: NodeTable) -> tuple[list[ProfilerEvent], list[int]]:
    """Transfer, forward with a synchronising item, backward on another thread, optimizer."""
    root, backbone = (nodes.add_node("module", path).number for path in ("", "backbone"))
    transfer = nodes.phase_node("transfer").number
    events = [
        made("cpu_op", f"detscope@{93 * US}", 95, 1, own=8),  # held up by 2 us
        made("cpu_op", f"detscope@{98 * US}", 98, 1, own=9),
        made("cpu_op", "aten::to", 105, 20, own=1),
        made("cuda_runtime", "cudaMemcpyAsync", 110, 5, own=1, linked=1),
        made("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 120, 30, own=1, linked=1, text='"bytes": 3000'),
        made("user_annotation", f"detscope#{root}", 130, 170, own=2),
        made("user_annotation", f"detscope#{backbone}", 140, 60, own=3),
        made("cpu_op", "aten::conv2d", 145, 40, own=4, sequence=11),
        made("cuda_runtime", "cudaLaunchKernel", 150, 10, own=2, linked=4),
        made("kernel", "implicit_gemm", 170, 100, own=2, linked=4, text=LAUNCH_SIZES),
        made("gpu_user_annotation", f"detscope#{backbone}", 170, 100, own=77, linked=3),
        made("cpu_op", "aten::item", 210, 80, own=5),
        made("cuda_runtime", "cudaStreamSynchronize", 215, 60, own=3, linked=5),
        made(
            "cpu_op",
            AUTOGRAD + "ConvolutionBackward0",
            320,
            40,
            own=6,
            sequence=11,
            thread=2,
            forward_thread=1,
        ),
        made("cuda_runtime", "cudaLaunchKernel", 330, 5, own=4, linked=6, thread=2),
        made("kernel", "dgrad", 340, 60, own=4, linked=6),
        made("kernel", "orphan", 420, 10, own=90, linked=91),
    ]
    marks = [
        *(transfer * 4, 100 * US, -1, transfer * 4 + 1, 128 * US, -1),
        *(root * 4, 130 * US, 10, backbone * 4, 140 * US, 11),
        *(backbone * 4 + 1, 200 * US, 13, root * 4 + 1, 300 * US, 13),
    ]
    return events, marks


Change = Callable[[ProfilerEvent], OldProfilerEvent]


def frames(nodes: NodeTable, change: Change = lambda event: event) -> tuple[pl.DataFrame, pl.DataFrame]:
    events, marks = one_step(nodes)
    raw = read_profiler_events([change(event) for event in events], device=True, shapes=False)
    steps = [StepSpan(12, 0, 90 * US, 500 * US)]
    tables = make_device_tables(attribute_operators(raw, nodes, marks, steps))
    assert tables is not None
    return tables


def test_kernels_and_copies_find_operator_module_phase_step_and_launch(nodes):
    device, _ = frames(nodes)
    rows = {row["name"]: row for row in device.to_dicts()}
    assert set(rows) == {"Memcpy HtoD (Pinned -> Device)", "implicit_gemm", "dgrad", "orphan"}
    forward, backward = rows["implicit_gemm"], rows["dgrad"]
    assert (forward["operator"], forward["module"], forward["stage"]) == (
        "aten::conv2d",
        "backbone",
        "backbone",
    )
    assert (forward["direction"], forward["phase"], forward["step"]) == ("forward", "forward", 12)
    assert (forward["start_ns"], forward["launch_ns"]) == (170 * US, 150 * US), "in the recorder's clock"
    assert (forward["blocks_per_sm"], forward["occupancy"]) == (1.5, 34.0)
    assert (backward["module"], backward["direction"], backward["phase"]) == (
        "backbone",
        "backward",
        "backward",
    )
    copy = rows["Memcpy HtoD (Pinned -> Device)"]
    assert (copy["kind"], copy["copy"], copy["bytes"], copy["phase"]) == ("copy", "HtoD", 3000, "transfer")
    assert rows["orphan"]["launch_ns"] is None


def test_runtime_calls_lie_on_the_thread_of_their_operator(nodes):
    _, host = frames(nodes)
    runtime = host.filter(pl.col("kind") == "runtime")
    assert set(runtime["thread"].to_list()) == {1, 2}
    kinds = dict(host.group_by("kind").len().iter_rows())
    assert kinds == {
        "step": 1,
        "loader": 1,
        "phase": 1,
        "stage": 1,
        "module": 2,
        "operator": 4,
        "runtime": 4,
    }


def test_a_torch_that_does_not_say_what_its_events_are_gives_the_same_rows_but_for_metadata(nodes):
    (device, host), (old_device, old_host) = frames(nodes), frames(nodes, make_older)
    unknown = [pl.lit(None, pl.Float64).alias(name) for name in ("blocks_per_sm", "occupancy")]
    unknown.append(pl.lit(None, pl.Int64).alias("bytes"))
    assert old_device.equals(device.with_columns(unknown))
    assert old_host.equals(host)


@pytest.mark.parametrize(
    ("event", "role"),
    [
        (OldProfilerEvent("cuda_runtime", "cudaStreamSynchronize", 0, 1, own=5), "runtime"),
        (OldProfilerEvent("cuda_runtime", "hipLaunchKernel", 0, 1, own=5), "runtime"),
        (OldProfilerEvent("xpu_runtime", "urEnqueueKernelLaunch", 0, 1, own=5), "runtime"),
        (OldProfilerEvent("overhead", "Activity Buffer Request", 0, 1), "ignored"),
        (OldProfilerEvent("gpu_user_annotation", "nccl:all_reduce", 0, 1), "device annotation"),
        (OldProfilerEvent("user_annotation", "cudaLike", 0, 1, own=5), "annotation"),
        (OldProfilerEvent("cuda_sync", "Stream Sync", 0, 1), "sync"),
        (OldProfilerEvent("cpu_op", "aten::cumsum", 0, 1, own=5), "operator"),
        (ProfilerEvent("xpu_driver", "zeCommandListAppendLaunchKernel", 0, 1), "runtime"),
        (ProfilerEvent("hip_runtime", "hipLaunchKernel", 0, 1), "runtime"),
        (ProfilerEvent("overhead", "Activity Buffer Request", 0, 1, own=5), "ignored"),
    ],
)
def test_every_accelerators_events_are_known_by_word_or_by_name(event, role):
    assert find_role(event) == role


def test_copies_of_an_intel_device_have_a_direction(nodes):
    names = (
        "Memcpy M2D (MEMORY -> DEVICE)",
        "Memcpy D2M (DEVICE -> MEMORY)",
        "Memcpy D2D (DEVICE -> DEVICE)",
    )
    events = [made("gpu_memcpy", name, 10 * i, 5, own=i) for i, name in enumerate(names, start=1)]
    raw = read_profiler_events(events, device=True, shapes=False)
    device, _ = make_device_tables(attribute_operators(raw, nodes, []))
    assert device["copy"].to_list() == ["HtoD", "DtoH", "DtoD"]


def test_event_records_right_inside_of_our_spans_are_no_calls_of_the_program(nodes):
    root = nodes.add_node("module", "").number
    events = [
        made("cpu_op", f"detscope#{root}", 100, 50, own=2),
        made("cuda_runtime", "cudaEventRecord", 101, 2, own=31, linked=2),
        made("cpu_op", "aten::copy_", 110, 20, own=3),
        made("cuda_runtime", "cudaEventRecord", 112, 2, own=32, linked=3),
        made("cuda_runtime", "cudaEventRecord", 170, 2, own=33),
    ]
    raw = read_profiler_events(events, device=True, shapes=False)
    _, host = make_device_tables(attribute_operators(raw, nodes, []))
    assert host.filter(pl.col("kind") == "runtime")["correlation"].to_list() == [32, 33]


class Queued(Accelerator):
    """A device whose profiler and queue write down what is asked of them."""

    activity = "CUDA"

    def __init__(self, log: list[str]) -> None:
        super().__init__("cuda:0")
        self.log = log

    def wait(self) -> None:
        self.log.append("wait")


def test_a_window_begins_with_an_empty_queue_and_asks_for_metadata(monkeypatch):
    log: list[str] = []
    asked: dict[str, Any] = {}

    class Session:
        def start(self) -> None:
            log.append("start")

    def make(**options: Any) -> Session:
        asked.update(options)
        return Session()

    plain = torch.profiler.profile
    monkeypatch.setattr(torch.profiler, "profile", make)
    window = OperatorWindow(Queued(log))
    window.start()
    assert log == ["wait", "start"]
    host, device = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA
    assert asked.pop("activities") == [host, device]
    if window.unknown is not None:  # an older torch
        assert asked["experimental_config"] is None
        return
    config = asked["experimental_config"]
    with plain(activities=[host], experimental_config=config, acc_events=True) as session:
        torch.ones(2) + 1
    texts = [event.metadata_json() for event in session.profiler.kineto_results.events()]
    assert all(texts), "by this setting events say more"


def test_a_torch_without_metadata_of_kernels_is_not_asked_for_it_and_that_is_said(monkeypatch):
    def refuse(**options: Any) -> Any:
        raise TypeError(f"incompatible constructor arguments: {options}")

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", refuse)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: asked.update(options))
    make_session("CUDA")
    assert asked["experimental_config"] is None
    assert "occupancy" in str(OperatorWindow(Queued([])).unknown)
    assert OperatorWindow(Accelerator("cpu")).unknown is None


def test_the_rows_give_utilisation_idle_causes_and_blame(nodes):
    figures = device_figures(*frames(nodes), pl.DataFrame(schema=polars_schema("kernel_metrics")))
    assert figures.steps == 1
    assert figures.utilisation.kernels_ns == 170 * US
    assert figures.utilisation.window_ns == 500 * US
    assert next(cause.idle_ns for cause in figures.idle.causes if cause.name == "data") == 90 * US
    (blamed,) = (row for row in figures.blame if row.cause == "synchronisation")
    assert (blamed.call, blamed.idle_ns) == ("item", 70 * US)
    assert figures.honesty.unlinked == 1


def test_operators_of_a_runtime_number_are_not_taken_for_launchers(nodes):
    events, marks = one_step(nodes)
    raw = read_profiler_events(events, device=True, shapes=False)
    rows = {row["name"]: row for row in attribute_operators(raw, nodes, marks).operators.to_dicts()}
    assert (rows["aten::conv2d"]["device_ns"], rows["aten::conv2d"]["kernels"]) == (100 * US, 1)
    assert rows["aten::item"]["device_ns"] == 0
    assert rows["aten::conv2d"]["self_ns"] == 40 * US, "its launch is part of it"
    assert "cudaLaunchKernel" not in rows


def test_without_a_device_there_are_no_device_rows(nodes):
    events = [made("cpu_op", "aten::add", 0, 5, own=1)]
    raw = read_profiler_events(events, device=False, shapes=False)
    assert make_device_tables(attribute_operators(raw, nodes, [])) is None
