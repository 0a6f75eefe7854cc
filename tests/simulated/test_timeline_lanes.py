"""A step on an asynchronous device: streams, idle time, waits, and marks to the end of the device."""

from __future__ import annotations

from pathlib import Path

from detscope.analyze.timeline.figures import RunTimeline
from detscope.analyze.timeline.read import read_timeline
from detscope.runs.reader import load_run
from simulated.cases import CASES, Level, record_case


def timeline_of(name: str, level: Level, out: Path) -> RunTimeline:
    found = read_timeline(load_run(record_case(CASES[name], level, out).folder))
    assert found is not None
    return found


def test_the_step_with_operators_has_streams_idle_time_and_arrows_where_the_host_waited(
    tmp_path: Path,
) -> None:
    found = timeline_of("synchronisation in forward", "ops", tmp_path)
    step = next(step for step in found.steps if "with operators" in step.title)
    titles = [lane.title for lane in step.lanes]
    assert "Device 0: idle, by cause" in titles
    assert any(title.startswith("Device 0: stream") for title in titles)
    assert step.arrows
    for arrow in step.arrows:
        assert titles[arrow.host_lane] == "Waits for the device"
        assert titles[arrow.device_lane].startswith("Device 0: stream")
        assert arrow.done_ns <= arrow.returned_ns
    idle = step.lanes[titles.index("Device 0: idle, by cause")]
    causes = {found.groups[group] for group in idle.groups.tolist()}
    assert "idle synchronisation" in causes


def test_by_marks_every_drawn_step_has_phases_and_stages_of_the_device_to_its_end(tmp_path: Path) -> None:
    found = timeline_of("device-bound", "modules", tmp_path)
    for step in found.steps:
        lanes = {lane.title: lane for lane in step.lanes}
        on_device = lanes["Phases on the device, by its marks"]
        assert "Stages on the device, by its marks" in lanes
        assert step.until_ns >= int((on_device.starts + on_device.lengths).max())
        assert {found.groups[group] for group in on_device.groups.tolist()} >= {"forward", "backward"}
