"""Steps by kernels on simulated programs: phases add up to the step, and every tick has one owner."""

from __future__ import annotations

from collections import Counter

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_files import tables
from made_program import TICK_NS, DeviceEvent, Program, Simulation, Wishes

from detscope.analyze.device.figures import find_lines
from detscope.analyze.device.timeline import DeviceTimeline
from detscope.analyze.device.times import DeviceTimes, find_caller, list_callers, measure_kernels

programs = st.builds(
    Wishes,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 3),
    modules=st.integers(1, 4),
    streams=st.integers(1, 3),
    loader=st.booleans(),
    synchronisations=st.sampled_from([0.0, 0.2, 0.6]),
)


def measured(program: Program) -> tuple[DeviceTimes, DeviceTimeline] | None:
    found = find_lines(*tables(program))
    if not found.lines:
        return None
    times = measure_kernels(found.lines[0], found.pieces[0], {}, {})
    assert times is not None
    return times, found.lines[0]


def owners(program: Program, line: DeviceTimeline) -> Counter[tuple[int, str]]:
    """Ticks in which the device worked by step and phase: of two the main stream's, then the earlier."""
    spent: Counter[int] = Counter()
    for event in program.device:
        if event.kind == "kernel":
            spent[event.stream] += event.end - event.start
    if not spent:
        spent.update({event.stream: event.end - event.start for event in program.device})
    main = min(spent, key=lambda stream: (-spent[stream], stream))
    busy: Counter[tuple[int, str]] = Counter()
    borders = zip(
        line.steps.numbers.tolist(), line.steps.starts.tolist(), line.steps.ends.tolist(), strict=True
    )
    for number, start, end in borders:
        for tick in range(start // TICK_NS, end // TICK_NS):
            running = [event for event in program.device if event.start <= tick < event.end]
            if running:
                first = min(running, key=lambda event: (event.stream != main, event.start))
                busy[number, first.phase] += 1
    return busy


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_phases_of_a_step_add_up_to_it_and_hold_what_their_kernels_took(wishes) -> None:
    program = Simulation(wishes).run()
    found = measured(program)
    if found is None:
        return
    times, line = found
    steps = times.steps
    parts = steps.filter(pl.col("phase") != "step").group_by("step").agg(pl.col("wall_ns", "idle_ns").sum())
    whole = steps.filter(pl.col("phase") == "step").select("step", "wall_ns", "idle_ns")
    assert parts.sort("step").rows() == whole.sort("step").rows()
    assert whole["wall_ns"].to_list() == (line.steps.ends - line.steps.starts).tolist()
    causes = times.causes
    assert sum(whole["idle_ns"]) == sum(getattr(causes, name) for name in causes.__struct_fields__)
    waits = steps.filter(pl.col("phase") == "data")
    assert waits["wall_ns"].to_list() == waits["idle_ns"].to_list(), "the wait for data is idle time"
    assert sum(waits["wall_ns"]) == causes.data_ns
    busy = {
        (step, phase): (wall - idle) // TICK_NS
        for step, phase, wall, idle in steps.select("step", "phase", "wall_ns", "idle_ns").iter_rows()
        if phase != "step" and wall > idle
    }
    assert busy == dict(owners(program, line))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_modules_hold_what_they_call_and_the_outermost_are_what_their_phases_are(wishes) -> None:
    found = measured(Simulation(wishes).run())
    if found is None:
        return
    times, _ = found
    for phase in ("forward", "backward"):
        rows = times.spans.filter((pl.col("direction") == phase) & (pl.col("kind") == "module"))
        outermost = rows.filter(pl.col("parent").is_null())["wall_ns"].sum()
        without = times.steps.filter(pl.col("phase") == phase)["wall_ns"].sum()
        assert outermost <= without
        totals = dict(rows.group_by("path").agg(pl.col("wall_ns").sum()).iter_rows())
        for path, total in totals.items():
            below = sum(ns for other, ns in totals.items() if find_caller(other, totals, {}) == path)
            assert below <= total


def test_a_node_is_called_by_what_was_seen_else_by_what_its_name_lies_below() -> None:
    known = {"", "rpn", "rpn.head", "roi_heads"}
    assert find_caller("rpn.head.conv", known, {}) == "rpn.head"
    assert find_caller("rpn:filter_proposals", known, {}) == "rpn"
    assert find_caller("nms()", known, {"nms()": "rpn"}) == "rpn"
    assert list_callers("nms()", known, {"nms()": "rpn"}) == ["nms()", "rpn", ""]
    assert find_caller("", known, {}) is None


def test_work_of_another_stream_is_beside_the_step_where_the_main_one_works() -> None:
    """A copy of 30 ticks beside a kernel of 50: nothing of it is the step's; a copy alone is."""
    wishes = Wishes(steps=1, modules=1, streams=1, loader=False, synchronisations=0.0)
    program = Simulation(wishes).run()
    kernel = next(event for event in program.device if event.kind == "kernel")
    last = max(event.end for event in program.device)

    def copied(start: int, length: int) -> DeviceEvent:
        launch = kernel.launch
        about = ("aten::to", None, "forward", "transfer", kernel.step)
        return DeviceEvent(
            "copy", "Memcpy HtoD (Pinned -> Device)", 99, start, start + length, launch, *about
        )

    program.device = [kernel]
    kernel.end = kernel.start + 50
    program.device.append(copied(kernel.start + 10, 30))
    times, _ = measured(program)
    transfer = times.steps.filter(pl.col("phase") == "transfer")
    assert transfer["wall_ns"].sum() == 0
    (beside,) = times.beside.filter(pl.col("stream") == 99).to_dicts()
    assert (beside["phase"], beside["wall_ns"]) == ("transfer", 30 * TICK_NS)
    assert last > 0
