"""A CUDA run at level ops: events as the profiler hands them over, to rows and to figures. No GPU needed."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pytest
from torch._C._autograd import DeviceType

from detscope.analyze.device.figures import device_figures
from detscope.record.operators.attribution import attribute_operators
from detscope.record.operators.device_rows import StepSpan, make_device_tables
from detscope.record.operators.profiler import AUTOGRAD, read_profiler_events
from detscope.record.steps.nodes import NodeTable
from detscope.runs.writer import polars_schema

US = 1000
LAUNCH_SIZES = '"queued": 0, "device": 0, "blocks per SM": 1.6, "est. achieved occupancy %": 34'


@dataclass
class Event:
    """The part of torch's own event class that is read."""

    kind: str
    label: str
    start_us: int
    wall_us: int
    own: int = 0  # correlation id
    linked: int = 0
    thread: int = 1
    sequence: int = -1
    text: str = ""

    def name(self) -> str:
        return self.label

    def activity_type(self) -> str:
        return self.kind

    def device_type(self) -> DeviceType:
        on_host = self.kind in ("cpu_op", "user_annotation", "cuda_runtime")
        return DeviceType.CPU if on_host else DeviceType.CUDA

    def start_ns(self) -> int:
        return (self.start_us + 500_000) * US  # the profiler's clock is not the recorder's

    def duration_ns(self) -> int:
        return self.wall_us * US

    def start_thread_id(self) -> int:
        return self.thread

    def sequence_nr(self) -> int:
        return self.sequence

    def correlation_id(self) -> int:
        return self.own

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_index(self) -> int:
        return 0

    def device_resource_id(self) -> int:
        return 7

    def metadata_json(self) -> str:
        return self.text


@pytest.fixture
def nodes() -> NodeTable:
    table = NodeTable()
    table.add_node("module", "", "Net")
    table.add_node("module", "backbone", "Conv2d", stage="backbone")
    return table


def one_step(nodes: NodeTable) -> tuple[list[Event], list[int]]:
    """Transfer, forward with a synchronising item, backward on another thread, optimizer."""
    root, backbone = (nodes.add_node("module", path).number for path in ("", "backbone"))
    transfer = nodes.phase_node("transfer").number
    events = [
        Event("cpu_op", "aten::to", 105, 20, own=1),
        Event("cuda_runtime", "cudaMemcpyAsync", 110, 5, own=1, linked=1, thread=999),
        Event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 120, 30, own=1, linked=1, text='"bytes": 3000'),
        Event("user_annotation", f"detscope#{root}", 130, 170, own=2),
        Event("user_annotation", f"detscope#{backbone}", 140, 60, own=3),
        Event("cpu_op", "aten::conv2d", 145, 40, own=4, sequence=11),
        Event("cuda_runtime", "cudaLaunchKernel", 150, 10, own=2, linked=4, thread=999),
        Event("kernel", "implicit_gemm", 170, 100, own=2, linked=4, text=LAUNCH_SIZES),
        Event("gpu_user_annotation", f"detscope#{backbone}", 170, 100, own=77, linked=3),
        Event("cpu_op", "aten::item", 210, 80, own=5),
        Event("cuda_runtime", "cudaStreamSynchronize", 215, 60, own=3, linked=5, thread=999),
        Event("cpu_op", AUTOGRAD + "ConvolutionBackward0", 320, 40, own=6, sequence=11, thread=2),
        Event("cuda_runtime", "cudaLaunchKernel", 330, 5, own=4, linked=6, thread=998),
        Event("kernel", "dgrad", 340, 60, own=4, linked=6),
        Event("kernel", "orphan", 420, 10, own=90, linked=91),
    ]
    marks = [
        *(transfer * 4, 100 * US, -1, transfer * 4 + 1, 128 * US, -1),
        *(root * 4, 130 * US, 10, backbone * 4, 140 * US, 11),
        *(backbone * 4 + 1, 200 * US, 13, root * 4 + 1, 300 * US, 13),
    ]
    return events, marks


def frames(nodes: NodeTable) -> tuple[pl.DataFrame, pl.DataFrame]:
    events, marks = one_step(nodes)
    raw = read_profiler_events(events, device=True, shapes=False)
    found = attribute_operators(raw, nodes, marks)
    tables = make_device_tables(raw, found, nodes, marks, [StepSpan(12, 0, 90 * US, 500 * US)])
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
    assert (forward["blocks_per_sm"], forward["occupancy"]) == (1.6, 34.0)
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
    assert kinds == {"step": 1, "loader": 1, "module": 2, "operator": 4, "runtime": 4}


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
    assert rows["aten::conv2d"]["self_ns"] == 30 * US, "the launch call is a row of its own"


def test_without_a_device_there_are_no_device_rows(nodes):
    events = [Event("cpu_op", "aten::add", 0, 5, own=1)]
    raw = read_profiler_events(events, device=False, shapes=False)
    assert make_device_tables(raw, attribute_operators(raw, nodes, []), nodes, [], []) is None
