"""Events of recorded traces, handed over as a live profiler does: what the importer says, to the digit."""

from __future__ import annotations

import gzip
import json
import sys
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

from kineto_maker import read

from detscope.analyze.device.figures import DeviceUse, device_figures
from detscope.record.operators import events as profiler_events_module
from detscope.record.operators.attribution import StepSpan, attribute_operators, make_device_tables
from detscope.record.operators.events import read_profiler_events
from detscope.record.steps.nodes import NodeTable
from detscope.runs.writer import polars_schema
from detscope.traces.naming import LOADER_MARK, OPTIMIZER_MARK, STEP_MARK
from profiler_events import ProfilerEvent

FILES = ("v100_resnet50_train_workers0", "v100_ddp_train_ns", "v100_rank1of2_memory_events")
# as the profiler called them before it called them as it does now
ACTIVITIES = {"Operator": "cpu_op", "Runtime": "cuda_runtime", "Kernel": "kernel"}
ACTIVITIES |= {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
MARKS = (STEP_MARK, LOADER_MARK, OPTIMIZER_MARK)


def to_ns(us: Any) -> int:
    return int((Decimal(us) * 1000).quantize(Decimal(1), ROUND_HALF_UP))


def live_events(path: Path) -> list[ProfilerEvent]:
    """The events of a trace as the profiler would have handed them over in the process that it ran in."""
    whole = json.loads(gzip.decompress(path.read_bytes()), strict=False, parse_float=Decimal)
    found = [event for event in whole["traceEvents"] if event.get("cat", "Trace") != "Trace"]
    found = [event for event in found if event["ph"] == "X"]
    main = next(int(event["tid"]) for event in found if STEP_MARK.search(event["name"]))
    return [_make_event(event, main) for event in found]


def _make_event(event: dict[str, Any], main: int) -> ProfilerEvent:
    given = event.get("args", {})
    kind = ACTIVITIES.get(event["cat"], event["cat"])
    if kind == "cpu_op" and any(mark.search(event["name"]) for mark in MARKS):
        kind = "user_annotation"
    external = given.get("External id", given.get("external id", 0))
    runs = kind in ("cpu_op", "user_annotation")
    thread = given.get("stream", event["tid"]) if kind in ON_DEVICE else int(event["tid"])
    return ProfilerEvent(
        kind,
        event["name"],
        to_ns(event["ts"]),
        round(float(event["dur"]) * 1e3),
        own=external if runs else given.get("correlation", 0),
        linked=0 if runs else external,
        thread=int(thread),
        torch_thread=1 if thread == main else int(thread),
        forward_thread=given.get("Fwd thread id", 0),
        sequence=given.get("Sequence number", -1),
        text=json.dumps(given, default=float)[1:-1] if kind in ON_DEVICE else "",
        dims=given.get("Input Dims", []),
        device=given.get("device", 0),
    )


@pytest.fixture(scope="module", params=FILES)
def both(recorded: Path, request: pytest.FixtureRequest):
    """Tables by the importer, and by the code that reads a live profiler."""
    path = recorded / "traces" / "kineto" / f"{request.param}.json.gz"
    imported = read(path)
    steps = [
        StepSpan(step, start, start, start + wall)
        for step, start, wall in imported.table("steps")
        .filter(pl.col("phase") == "step")
        .select("step", "start_ns", "wall_ns")
        .iter_rows()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiler_events_module, "_SHAPES_FROM_NS", 0)  # a file has them of all operators
        raw = read_profiler_events(live_events(path), device=True, shapes=True)
    result = attribute_operators(raw, NodeTable(), [], steps)
    tables = make_device_tables(result, imported.sink.rank)
    assert tables is not None
    return request.param, imported, result, *tables


def test_kernels_copies_and_operators_of_a_v100_are_the_importers_row_by_row(both):
    _, imported, result, device, host = both
    assert device.equals(imported.table("device_events"))
    assert result.operators.equals(imported.table("ops"))
    # a live profiler records no lines of code, does not name its own process, and numbers steps without marks
    plain = pl.col("*").exclude("process", "stack")
    named = pl.when(pl.col("kind") == "step").then(pl.col("name").str.extract(r"(\d+)$")).otherwise("name")
    ours, theirs = (
        table.select(plain).with_columns(name=named) for table in (host, imported.table("host_events"))
    )
    assert ours.equals(theirs)


def test_published_figures_of_a_v100_come_out_of_the_live_path_too(both):
    name, imported, _, device, host = both
    none = pl.DataFrame(schema=polars_schema("kernel_metrics"))
    found: DeviceUse = device_figures(device, host, none)
    other = device_figures(imported.table("device_events"), imported.table("host_events"), none)
    assert found.utilisation == other.utilisation
    assert found.idle == other.idle
    assert found.breakdown == other.breakdown
    if name == "v100_resnet50_train_workers0":
        assert round(found.utilisation.kernels, 4) == 0.5551
        assert round(found.sm_efficiency.value, 4) == 0.5468
        assert round(found.occupancy.value, 4) == 0.4913
