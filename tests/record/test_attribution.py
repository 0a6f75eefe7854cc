"""Operators to modules, on streams with known answers and on a real model."""

from __future__ import annotations

import time
import warnings

import polars as pl
import pytest
import torch
from torch import nn

from detscope.machine.accelerator import Accelerator
from detscope.record.model.borders import BorderWriter
from detscope.record.model.probes import ModelProbes
from detscope.record.operators.attribution import NOBODY, attribute_operators, find_owners
from detscope.record.operators.events import read_profiler_events
from detscope.record.operators.profiler import OperatorWindow
from detscope.record.steps.events import EventBuffer
from detscope.record.steps.nodes import NodeTable
from detscope.traces.columns import TraceEvents
from profiler_events import ProfilerEvent

AUTOGRAD = "autograd::engine::evaluate_function: "
ENGINE = 2  # the thread of the autograd engine, on a device


def operator(name: str, start: int, wall: int, sequence: int = -1, **more: int) -> ProfilerEvent:
    return ProfilerEvent("cpu_op", name, start, wall, sequence=sequence, **{"own": start + 1, **more})


def events_of(*events: ProfilerEvent, device: bool = False) -> TraceEvents:
    return read_profiler_events(events, device, shapes=False)


@pytest.fixture
def table() -> NodeTable:
    nodes = NodeTable()
    nodes.add_node("module", "", "Net")
    nodes.add_node("module", "conv", "Conv2d", stage="backbone")
    nodes.add_node("module", "head", "Linear", stage="head")
    return nodes


def forward_events(nodes: NodeTable) -> list[int]:
    """Root creates node 10, conv 11 and 12, root 13, head 14; 15 is made outside."""
    root, conv, head = (nodes.add_node("module", path).number for path in ("", "conv", "head"))
    return [
        *(root * 4, 0, 10),
        *(conv * 4, 10, 11),
        *(conv * 4 + 1, 30, 13),
        *(head * 4, 40, 14),
        *(head * 4 + 1, 60, 15),
        *(root * 4 + 1, 61, 15),
    ]


def test_every_sequence_number_belongs_to_the_innermost_module_that_created_it(table):
    owners = find_owners(forward_events(table), table)
    paths = {
        s: table[o].path if (o := owners.owner_at(s)[0]) != NOBODY else None
        for s in (9, 10, 11, 12, 13, 14, 15)
    }
    assert paths == {9: None, 10: "", 11: "conv", 12: "conv", 13: "", 14: "head", 15: None}


def test_recomputed_modules_of_the_engines_thread_leave_the_numbers_of_forward_alone(table):
    backward, conv = table.phase_node("backward").number, table.add_node("module", "conv").number
    again = [
        *(backward * 4, 70, -1),
        *(conv * 4, 80, 3),
        *(conv * 4 + 1, 90, 14),
        *(backward * 4 + 1, 99, -1),
    ]
    plain, repeated = forward_events(table), forward_events(table) + again
    assert find_owners(repeated, table) == find_owners(plain, table)


def forward_operators(table: NodeTable) -> list[ProfilerEvent]:
    """A convolution in one module, a product in another, an addition outside of both."""
    conv, head = (table.add_node("module", path).number for path in ("conv", "head"))
    return [
        operator(f"detscope#{conv}", 0, 30),
        operator("aten::convolution", 5, 20, 11),
        operator(f"detscope#{head}", 40, 30),
        operator("aten::addmm", 45, 20, 14),
        operator("aten::add", 80, 5, 15),
    ]


def backward_operators(**where: int) -> list[ProfilerEvent]:
    return [
        operator(AUTOGRAD + "AddBackward0", 100, 5, 15, **where),
        operator(AUTOGRAD + "AddmmBackward0", 110, 20, 14, **where),
        operator("aten::mm", 112, 8, **where),
        operator(AUTOGRAD + "torch::autograd::AccumulateGrad", 131, 4, **where),
        operator(AUTOGRAD + "ConvolutionBackward0", 140, 50, 11, **where),
    ]


@pytest.mark.parametrize("device", [False, True])
def test_backward_nodes_go_to_the_module_that_made_them_and_accumulate_grad_follows_its_producer(
    table, device
):
    raw = events_of(
        *forward_operators(table), *backward_operators(thread=ENGINE, forward_thread=1), device=device
    )
    result = attribute_operators(raw, table, [])
    rows = {(r["name"].removeprefix(AUTOGRAD), r["module"]): r for r in result.operators.to_dicts()}
    assert rows["AddmmBackward0", "head"]["self_ns"] == 12
    assert rows["aten::mm", "head"]["direction"] == "backward"
    assert rows["torch::autograd::AccumulateGrad", "head"]["stage"] == "head"
    assert rows["ConvolutionBackward0", "conv"]["stage"] == "backbone"
    assert rows["AddBackward0", None]["total_ns"] == 5
    assert result.backward_in_modules_ns / result.backward_ns == pytest.approx(74 / 79)


def test_equal_sequence_numbers_of_two_threads_are_two_nodes(table):
    """Checkpointing on a device: the engine's thread runs a module again and counts from 0 on its own."""
    conv = table.add_node("module", "conv").number
    again = {"thread": ENGINE, "forward_thread": 1}
    raw = events_of(
        *forward_operators(table),
        operator(AUTOGRAD + "CheckpointFunctionBackward", 100, 60, 15, **again),
        operator(f"detscope#{conv}", 110, 20, thread=ENGINE),
        operator("aten::convolution", 112, 15, 14, thread=ENGINE),  # as the head's, on the main thread
        operator(AUTOGRAD + "ConvolutionBackward0", 140, 15, 14, thread=ENGINE, forward_thread=ENGINE),
        operator(AUTOGRAD + "AddmmBackward0", 170, 20, 14, **again),
    )
    rows = attribute_operators(raw, table, []).operators.to_dicts()
    found = {(r["name"].removeprefix(AUTOGRAD), r["direction"]): r for r in rows}
    assert found["ConvolutionBackward0", "backward"]["module"] == "conv"
    assert found["AddmmBackward0", "backward"]["module"] == "head"
    assert found["aten::convolution", "recompute"]["module"] == "conv"
    assert found["aten::convolution", "recompute"]["stage"] == "backbone"


def test_kernels_find_their_operator_through_the_correlation_id_and_orphans_are_counted(table):
    conv = table.add_node("module", "conv").number
    raw = events_of(
        operator(f"detscope#{conv}", 0, 100),
        operator("aten::convolution", 10, 50, own=7),
        ProfilerEvent("kernel", "implicit_gemm", 200, 400, own=40, linked=7, thread=13),
        ProfilerEvent("kernel", "orphan", 700, 10, own=41, linked=99, thread=13),
        device=True,
    )
    result = attribute_operators(raw, table, [])
    (row,) = result.operators.to_dicts()
    assert (row["module"], row["device_ns"], row["kernels"]) == ("conv", 400, 1)
    assert result.kernels_unlinked == 1
    assert result.device["name"].to_list() == ["implicit_gemm", "orphan"]


def test_without_a_device_there_is_no_device_time_rather_than_zero(table):
    raw = events_of(operator("aten::add", 0, 10))
    assert attribute_operators(raw, table, []).operators["device_ns"].to_list() == [None]


def test_annotations_are_no_operators_and_phases_are_the_recorders(table):
    transfer = table.phase_node("transfer").number
    raw = events_of(
        ProfilerEvent("user_annotation", "my label", 0, 100, own=1),
        operator("aten::to", 10, 20),
        operator("aten::item", 60, 20),
    )
    marks = [*(transfer * 4, 5, -1), *(transfer * 4 + 1, 40, -1)]
    rows = attribute_operators(raw, table, marks).operators
    assert dict(rows.select("name", "phase").iter_rows()) == {"aten::to": "transfer", "aten::item": "other"}


def test_self_times_of_nested_operators_add_up_to_the_outermost(table):
    raw = events_of(
        operator("outer", 0, 100),
        operator("middle", 10, 60),
        operator("inner", 20, 30),
        operator("inner", 55, 10),
        operator("other", 100, 7),
    )
    rows = {row["name"]: row for row in attribute_operators(raw, table, []).operators.to_dicts()}
    assert {name: row["self_ns"] for name, row in rows.items()} == {
        "outer": 40,
        "middle": 20,
        "inner": 40,
        "other": 7,
    }
    assert rows["inner"]["count"] == 2


class Branchy(nn.Module):
    """In-place ReLU, a shared module, functional operations between children, nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.shared = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        x = self.relu(self.conv(x))
        return {"out": [self.shared(x) * 2, self.shared(x.flip(-1))]}


def test_real_operators_of_a_real_backward_pass_all_find_their_module():
    model = Branchy()
    nodes = NodeTable()
    buffer = EventBuffer()
    borders = BorderWriter(buffer)
    probes = ModelProbes(model, nodes, borders, "all", (), (), lambda *_: None, lambda *_: None)
    probes.attach_modules(modules=True)
    borders.record_functions = True
    window = OperatorWindow(Accelerator("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        window.start()
    before_ns = time.perf_counter_ns()
    outputs = model(torch.rand(2, 3, 16, 16))["out"]
    torch.stack(outputs).sum().backward()
    wall_ns = time.perf_counter_ns() - before_ns
    raw = window.stop()
    probes.remove_all()
    result = attribute_operators(raw, nodes, buffer.take_events()[0])
    rows = result.operators.filter(pl.col("module").is_not_null())
    owners = set(rows.select("name", "module").rows())
    assert (AUTOGRAD + "ConvolutionBackward0", "conv") in owners
    assert (AUTOGRAD + "ConvolutionBackward0", "shared") in owners
    assert (AUTOGRAD + "ReluBackward0", "relu") in owners
    assert (AUTOGRAD + "MulBackward0", "") in owners
    assert (AUTOGRAD + "FlipBackward0", "") in owners
    assert (AUTOGRAD + "ConvolutionBackward0", "relu") not in owners
    forward = rows.filter(pl.col("direction") == "forward")
    assert ("aten::conv2d", "shared") in set(forward.select("name", "module").rows())
    # operators are on the recorder's clock; where the process was held up between reading the one clock and
    # the other, they are off by as much, which is never more than all of it took
    assert result.host["start_ns"].min() >= before_ns - wall_ns
    assert result.host["start_ns"].max() <= before_ns + 2 * wall_ns
