"""Memory of a device: blocks that are larger than their tensors, workspaces, levels that the driver tells."""

from __future__ import annotations

import polars as pl
import pytest
import torch

from detscope.machine.device_memory import count_cublas_workspace, may_hold, round_block
from detscope.record.memory.ledger import MemoryLedger, StepObservations, TensorHolders
from detscope.record.memory.live import read_levels
from detscope.record.memory.trace import NOWHERE, MemoryTrace, OperatorContext
from detscope.record.model.borders import SeenTensor
from detscope.record.steps.nodes import NodeTable
from detscope.runs.writer import polars_schema

DEVICE = "cuda:0"
WORKSPACE_BYTES = 8_519_680


def account(blocks: list[tuple[int, int, OperatorContext]], seen: list[SeenTensor]) -> pl.DataFrame:
    """One forward and backward pass in which blocks (address, bytes, place) come in forward and stay."""
    nodes = NodeTable()
    nodes.add_node("module", "body")
    ledger = MemoryLedger(nodes, library_bytes=WORKSPACE_BYTES)
    trace = MemoryTrace(phases=[(0, 1000, "forward"), (1000, 2000, "backward")])
    for number, (address, size, place) in enumerate(blocks):
        trace.changes += [
            (10 + number, address, size, DEVICE, place),
            (1500 + number, address, -size, DEVICE, NOWHERE),
        ]
    trace.changes.sort()
    ledger.add_step(trace, StepObservations(0, 3000, TensorHolders([]), {}, [], None, seen))
    ledger.write_alive()
    return pl.DataFrame(ledger.take_rows(), schema=polars_schema("memory"), orient="row")


def inside(operator: str, direction: str = "forward", run: int = 1) -> OperatorContext:
    return OperatorContext(0, "", direction, operator, run)


def test_a_tensor_of_an_odd_size_keeps_its_shape_in_a_block_that_is_rounded_up() -> None:
    shape = torch.Size([3, 7, 11])  # 924 bytes in a block of 1,024
    rows = account([(4096, 1024, inside("aten::add"))], [SeenTensor(100, 4096, shape, torch.float32, 0)])
    assert rows.select("bytes", "shape", "dtype").row(0) == (1024, "3x7x11", "float32")


def test_what_a_module_makes_inside_is_known_by_what_passes_its_border_also_when_rounded() -> None:
    shape = torch.Size([3, 7, 11])
    elsewhere = [SeenTensor(100, 9999, shape, torch.float32, 0)]
    rows = account(
        [
            (4096, 1024, inside("aten::add")),
            (8192, round_block(2 * 924), inside("aten::max_pool2d", run=2)),
            (16384, 1536, inside("aten::mul", run=3)),
        ],
        elsewhere,
    )
    found = dict(rows.select("operator", "shape").iter_rows())
    assert found == {"aten::add": "3x7x11", "aten::max_pool2d": "3x7x11", "aten::mul": None}
    assert rows.filter(operator="aten::max_pool2d")["dtype"][0] == "int64"


def test_a_part_of_a_tensor_is_not_taken_for_the_whole() -> None:
    whole, part = torch.Size([1100, 1024]), torch.Size([1000, 1024])
    block = round_block(whole.numel() * 4) + (512 << 10)  # its rest was too small to be another block
    seen = [SeenTensor(50, 4096, whole, torch.float32, 0), SeenTensor(60, 4096, part, torch.float32, 0)]
    assert account([(4096, block, inside("aten::add"))], seen)["shape"][0] == "1100x1024"


@pytest.mark.parametrize(
    ("block", "size", "held"),
    [
        (512, 1, True),
        (1024, 924, True),
        (1024, 400, False),
        (512, 924, False),
        (20 << 20, (19 << 20) + 1, True),
        (20 << 20, 18 << 20, False),
        (1 << 20, 512 << 10, False),  # small requests are split from their segment
    ],
)
def test_a_block_is_as_large_as_the_allocator_would_have_made_it(block: int, size: int, held: bool) -> None:
    assert may_hold(block, size) is held


def test_the_workspace_that_cublas_keeps_is_a_workspace_and_no_activation() -> None:
    rows = account(
        [
            (4096, WORKSPACE_BYTES, inside("aten::addmm")),
            (1 << 30, WORKSPACE_BYTES, inside("aten::add", run=2)),
        ],
        [],
    )
    found = {
        operator: (category, name)
        for operator, category, name in rows["operator", "category", "name"].iter_rows()
    }
    assert found == {"aten::addmm": ("workspace", "cuBLAS"), "aten::add": ("activations", None)}


def test_the_size_of_cublas_workspace_is_as_configured() -> None:
    assert count_cublas_workspace(8, {}) == WORKSPACE_BYTES
    assert count_cublas_workspace(9, {}) == 32 << 20
    assert (
        count_cublas_workspace(8, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8:16:8"}) == (4096 * 8 + 16 * 8) * 1024
    )
    assert count_cublas_workspace(8, {"CUBLAS_WORKSPACE_CONFIG": ":nonsense"}) == WORKSPACE_BYTES


def test_levels_of_a_device_tell_what_is_reserved_fragmented_and_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def block(size: int, state: str) -> dict[str, object]:
        return {"size": size, "state": state, "address": 0}

    segments = [
        {"device": 1, "blocks": [block(600, "active_allocated"), block(1400, "inactive")]},
        {"device": 1, "blocks": [block(2000, "inactive")]},  # whole: it can be given back
        {"device": 0, "blocks": [block(900, "active_allocated"), block(99_000, "inactive")]},
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    for name in ("memory_allocated", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (50_000, 60_000))
    rows = [(level, size) for _, _, device, level, size in read_levels(3, (), "cuda:1") if device == "cuda:1"]
    assert rows == [
        ("reserved", 4000),
        ("beside", 6000),
        ("fragmented", 1400),
        ("largest_free", 2000),
        ("largest_free", 1400),
    ]
