"""Operators to modules, on streams with known answers and on a real model."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from detscope.record.attribution import NOBODY, attribute, ownership
from detscope.record.events import EventBuffer
from detscope.record.nodes import NodeTable
from detscope.record.operators import OperatorWindow, RawEvent
from detscope.record.probes import Attachments, BorderScribe

AUTOGRAD = "autograd::engine::evaluate_function: "


def host(
    name: str, start: int, length: int, sequence: int = -1, correlation: int = 0, thread: int = 1
) -> RawEvent:
    return RawEvent(name, start, length, thread, sequence, False, correlation)


@pytest.fixture
def table() -> NodeTable:
    nodes = NodeTable()
    nodes.add("module", "", "Net")
    nodes.add("module", "conv", "Conv2d", stage="backbone")
    nodes.add("module", "head", "Linear", stage="head")
    return nodes


def forward_events(nodes: NodeTable) -> list[int]:
    """Root creates node 10, conv 11 and 12, root 13, head 14; 15 is made outside."""
    root, conv, head = (nodes.add("module", path).number for path in ("", "conv", "head"))
    return [
        *(root * 4, 0, 10),
        *(conv * 4, 10, 11),
        *(conv * 4 + 1, 30, 13),
        *(head * 4, 40, 14),
        *(head * 4 + 1, 60, 15),
        *(root * 4 + 1, 61, 15),
    ]


def test_every_sequence_number_belongs_to_the_innermost_module_that_created_it(table):
    owners = ownership(forward_events(table), table)
    paths = {
        s: table[o].path if (o := owners.at(s)[0]) != NOBODY else None for s in (9, 10, 11, 12, 13, 14, 15)
    }
    assert paths == {9: None, 10: "", 11: "conv", 12: "conv", 13: "", 14: "head", 15: None}


def test_backward_nodes_go_to_the_module_that_made_them_and_accumulate_grad_follows_its_producer(table):
    raw = [
        host(AUTOGRAD + "AddBackward0", 100, 5, sequence=15),
        host(AUTOGRAD + "AddmmBackward0", 110, 20, sequence=14),
        host("aten::mm", 112, 8),
        host(AUTOGRAD + "torch::autograd::AccumulateGrad", 131, 4),
        host(AUTOGRAD + "ConvolutionBackward0", 140, 50, sequence=11),
    ]
    result = attribute(raw, table, forward_events(table))
    found = {(row.name.removeprefix(AUTOGRAD), row.owner): row for row in result.rows}
    head, conv = (table.add("module", path).number for path in ("head", "conv"))
    assert found["AddmmBackward0", head].self_ns == 12
    assert found["aten::mm", head].direction == "backward"
    assert found["torch::autograd::AccumulateGrad", head].stage == "head"
    assert found["ConvolutionBackward0", conv].stage == "backbone"
    assert found["AddBackward0", NOBODY].total_ns == 5
    assert result.backward_share == pytest.approx(74 / 79)


def test_kernels_find_their_operator_through_the_correlation_id_and_orphans_are_counted(table):
    conv = table.add("module", "conv").number
    raw = [
        host(f"detscope#{conv}", 0, 100),
        host("aten::convolution", 10, 50, correlation=7),
        RawEvent("implicit_gemm", 200, 400, 0, -1, True, 7),
        RawEvent("orphan", 700, 10, 0, -1, True, 99),
    ]
    result = attribute(raw, table, [])
    (row,) = result.rows
    assert (row.owner, row.device_ns, row.kernels) == (conv, 400, 1)
    assert result.kernels_unlinked == 1


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
    scribe = BorderScribe(buffer)
    attachments = Attachments()
    for path, module in model.named_modules():
        attachments.module(module, *scribe.pair(nodes.add("module", path).number))
    scribe.record_functions = True
    window = OperatorWindow(cuda=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        window.start()
    outputs = model(torch.rand(2, 3, 16, 16))["out"]
    torch.stack(outputs).sum().backward()
    raw = window.stop()
    attachments.remove()
    result = attribute(raw, nodes, buffer.take()[0])
    owners = {(row.name, nodes[row.owner].path) for row in result.rows if row.owner != NOBODY}
    assert (AUTOGRAD + "ConvolutionBackward0", "conv") in owners
    assert (AUTOGRAD + "ConvolutionBackward0", "shared") in owners
    assert (AUTOGRAD + "ReluBackward0", "relu") in owners
    assert (AUTOGRAD + "MulBackward0", "") in owners
    assert (AUTOGRAD + "FlipBackward0", "") in owners
    assert (AUTOGRAD + "ConvolutionBackward0", "relu") not in owners
    assert abs(result.clock_offset_ns) > 0
    forward = {
        (row.name, nodes[row.owner].path)
        for row in result.rows
        if row.direction == "forward" and row.owner != NOBODY
    }
    assert ("aten::conv2d", "shared") in forward
