"""A step on the device's clock, from marks with known answers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from detscope.record.steps.device_account import (
    DeviceMoment,
    account_device,
    make_device_span_rows,
    make_device_step_rows,
)
from detscope.record.steps.nodes import PHASES, NodeTable

ENTER, EXIT, MARK = range(3)


class Marks:
    """Moments of one stream: work is queued by the host and done by a device, one piece after the other."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.host = self.free = 0
        self.moments: list[DeviceMoment] = [DeviceMoment(None, 0, 0)]

    def queue(self, device_ns: int, host_ns: int = 1) -> None:
        self.host += host_ns
        self.free = max(self.free, self.host) + device_ns

    def mark(self, what: int, kind: str, path: str, stage: str | None = None) -> None:
        number = self.nodes.add_node(kind, path, stage=stage).number
        self.moments.append(DeviceMoment(number * 4 + what, self.host, max(self.free, self.host)))

    def end(self):
        self.moments.append(DeviceMoment(None, self.host, max(self.free, self.host)))
        return account_device(self.moments, self.nodes)


def one_step(work_ns: int, host_ns: int, data_ns: int = 0) -> Marks:
    """Data, a forward of two modules with five kernels each, an optimizer step."""
    marks = Marks()
    marks.mark(ENTER, "phase", "data")
    marks.host += data_ns
    marks.mark(EXIT, "phase", "data")
    marks.mark(ENTER, "phase", "forward")
    for name in ("backbone", "head"):
        marks.mark(ENTER, "module", name, name)
        for _ in range(5):
            marks.queue(work_ns, host_ns)
        marks.mark(EXIT, "module", name)
    marks.mark(EXIT, "phase", "forward")
    marks.mark(ENTER, "phase", "optimizer")
    marks.queue(work_ns, host_ns)
    marks.mark(EXIT, "phase", "optimizer")
    return marks


def test_where_the_host_is_ahead_all_of_a_phase_is_work_whatever_the_host_took():
    marks = one_step(work_ns=100, host_ns=1)
    found = marks.end()
    assert found.wall.phases["forward"] == 1_001  # the first kernel waits for its launch
    assert found.wall.phases["optimizer"] == 100
    assert found.idle.phases["optimizer"] == 0
    assert found.idle.phases["forward"] <= 5  # until backbone's five launches were queued
    assert found.ahead_ns == 1_101 - 11


def test_where_the_device_starves_a_phase_is_work_and_idle_and_never_work_alone():
    found = one_step(work_ns=10, host_ns=100).end()
    wall, idle = found.wall.phases["forward"], found.idle.phases["forward"]
    assert wall == 1_010
    assert wall - idle <= 100  # what is sure to be work is not more than there was
    assert found.ahead_ns == 10


def test_waiting_for_data_is_what_the_device_stood_still_for_and_nothing_else():
    hidden, exposed = one_step(100, 1), one_step(100, 1, data_ns=700)
    hidden.free = 0
    assert exposed.end().wall.phases["data"] == 700
    busy = Marks()
    busy.free = 400  # of the step before: the device works it off while the host waits for a batch
    busy.moments = [DeviceMoment(None, 0, 400)]
    busy.mark(ENTER, "phase", "data")
    busy.host += 700
    busy.mark(EXIT, "phase", "data")
    found = busy.end()
    assert found.wall.phases["data"] == found.idle.phases["data"] == 300
    busy = Marks()
    busy.free = 900
    busy.moments = [DeviceMoment(None, 0, 900)]
    busy.mark(ENTER, "phase", "data")
    busy.host += 700
    busy.mark(EXIT, "phase", "data")
    assert busy.end().wall.phases["data"] == 0


def test_backward_goes_to_the_stage_of_the_node_that_was_reached_though_it_has_no_mark_forward():
    marks = one_step(100, 1)
    inner = marks.nodes.add_node("module", "backbone.conv").number
    backbone = marks.nodes.add_node("module", "backbone").number
    marks.mark(ENTER, "phase", "backward")
    marks.mark(MARK, "module", "backbone.conv")
    marks.queue(250)
    marks.mark(EXIT, "phase", "backward")
    marks.moments.append(DeviceMoment(None, marks.host, marks.free))
    ways = {inner: ((backbone, inner), "backbone")}
    found = account_device(marks.moments, marks.nodes, ways)
    assert found.wall.stages["backbone", "backward"] == 250
    rows = make_device_span_rows(3, marks.nodes, found, {backbone}, ways)
    assert (3, "module", "backbone", None, "backward", 1, 250, 0) in rows
    assert not [row for row in rows if row[2] == "backbone.conv"]  # it was passed, its turn it was not


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.sampled_from(PHASES[:-1])), max_size=12)
)
def test_phases_on_the_device_are_its_step_and_no_phase_is_idle_for_longer_than_it_took(pieces):
    marks = Marks()
    truth_busy = 0
    for device_ns, host_ns, phase in pieces:
        marks.mark(ENTER, "phase", phase)
        marks.queue(device_ns, host_ns)
        marks.mark(EXIT, "phase", phase)
        truth_busy += device_ns
    found = marks.end()
    rows = {row[1]: row for row in make_device_step_rows(0, found)}
    whole = rows.pop("step")
    assert sum(row[4] for row in rows.values()) == whole[4]
    assert sum(row[5] for row in rows.values()) == whole[5]
    assert all(0 <= row[5] <= row[4] for row in rows.values())
    assert whole[4] - whole[5] <= truth_busy <= whole[4]  # sure work <= work <= the interval
