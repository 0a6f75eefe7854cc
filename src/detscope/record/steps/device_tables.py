"""Rows on the device's clock: steps wait here until it has passed their marks; the loop never does."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.machine.accelerator import Accelerator
from detscope.record.device.clock import DeviceClock, DeviceMark
from detscope.record.device.mark_plan import MarkPlan
from detscope.record.steps.device_account import (
    DeviceMoment,
    account_device,
    make_device_span_rows,
    make_device_step_rows,
)
from detscope.record.steps.drawn import DrawnSteps
from detscope.record.steps.events import ENTER, EXIT, TIME, WIDTH, encode_event
from detscope.record.steps.nodes import PHASES, NodeTable
from detscope.record.steps.replay import BACKWARD, FORWARD, StepAccount
from detscope.record.steps.rows import make_timeline_rows
from detscope.record.steps.schedule import BARE, RECORDED, WARMUP
from detscope.runs.writer import RunWriter

if TYPE_CHECKING:
    from detscope.record.steps.tables import OpenStep

_DATA = PHASES.index("data")
_DATA_BEGINS, _DATA_ENDS = encode_event(_DATA, ENTER), encode_event(_DATA, EXIT)
_LEARNT_FIRST, _LEARNT_EVERY = 4, 16  # steps whose events are looked at for the plan


@dataclass(frozen=True)
class MarkedEvent:
    """An event with a mark: its code (None: a border of the step) and the host's time."""

    code: int | None
    host_ns: int
    mark: DeviceMark


@dataclass(frozen=True)
class WaitingStep:
    """A step whose marks the device may still have to pass."""

    index: int
    mode: str
    events: list[MarkedEvent]
    marked: frozenset[int]
    traced: bool


class DeviceTables:
    """Writes `device_steps` and `device_spans`, and tells the plan of marks what it needs to know."""

    def __init__(
        self,
        writer: RunWriter,
        nodes: NodeTable,
        accelerator: Accelerator,
        clock: DeviceClock,
        plan: MarkPlan,
        drawn: DrawnSteps,
    ) -> None:
        self._writer = writer
        self._drawn = drawn
        self._traced: set[int] = set()
        self._nodes = nodes
        self._accelerator = accelerator
        self._clock = clock
        self._plan = plan
        self._waiting: deque[WaitingStep] = deque()
        self._streams: dict[int, int] = {}  # beside the model's own, numbered from 1
        self._steps_learnt = 0
        self._marks: list[int] = []  # of recorded steps
        self._walls_ns: list[int] = []

    def add_step(self, step: OpenStep, traced: bool) -> None:
        """Take a finished step; write those that the device has passed by now."""
        self._learn_step(step)
        events = _find_marked(step)
        if events:
            self._waiting.append(WaitingStep(step.index, step.mode, events, step.marked, traced))
        if step.mode == RECORDED:
            self._marks.append(len({id(event.mark.event) for event in events}))
            if step.marked:
                self._plan.learn_marks(self._marks[-1])
            self._walls_ns.append(step.end_ns - step.start_ns)
        self.write_ready()

    def _learn_step(self, step: OpenStep) -> None:
        if step.mode not in (RECORDED, WARMUP) or not step.events:
            return
        self._steps_learnt += 1
        if self._steps_learnt <= _LEARNT_FIRST or self._steps_learnt % _LEARNT_EVERY == 0:
            self._plan.learn_step(step.events, step.end_ns - step.start_ns)

    def write_ready(self) -> None:
        """Write the steps whose marks have been passed, in their order."""
        while self._waiting and self._clock.can_ask():
            step = self._waiting[0]
            if not self._clock.have_passed(event.mark for event in step.events):
                return
            self._write_step(self._waiting.popleft())

    def close_tables(self) -> None:
        """Wait for the device, write what is left, say what the marks cost."""
        if self._waiting:
            self._clock.wait_for_device()
        self.write_ready()
        self._draw_chosen()
        clock, plan, steps = self._clock, self._plan, len(self._marks)
        self._writer.info["device_clock"] = describe_clock(self._accelerator, clock) | {
            "marks_per_step": sum(self._marks) / steps if steps else None,
            "mark_share": sum(self._marks) * clock.mark_cost_ns / sum(self._walls_ns) if steps else None,
            "below_mark": plan.list_below(),
            "unmarked": plan.list_unmeasured(),
            "steps_lost": len(self._waiting),
        }

    def _write_step(self, step: WaitingStep) -> None:
        clock, marks = self._clock, [event.mark for event in step.events]
        main = Counter(mark.stream for mark in marks).most_common(1)[0][0]
        # a step is placed by the first mark of the stream the model runs on
        ordered = sorted(range(len(marks)), key=lambda place: marks[place].stream != main)
        placed = clock.place_marks([marks[place] for place in ordered])
        if placed is not None:
            by_stream: dict[int, list[DeviceMoment]] = {}
            for place, device_ns in zip(ordered, placed, strict=True):
                event = step.events[place]
                moment = DeviceMoment(event.code, event.host_ns, device_ns)
                by_stream.setdefault(event.mark.stream, []).append(moment)
            self._write_streams(step, main, by_stream)
        clock.recycle_marks({id(mark.event): mark for mark in marks}.values())

    def _write_streams(self, step: WaitingStep, main: int, by_stream: dict[int, list[DeviceMoment]]) -> None:
        ways, writer = self._plan.ways, self._writer
        for stream, moments in by_stream.items():
            if len(moments) < 2:
                continue
            number = 0 if stream == main else self._streams.setdefault(stream, len(self._streams) + 1)
            account = account_device(moments, self._nodes, ways, keep_slices=step.traced)
            rows = make_device_step_rows(step.index, account, number)
            if step.mode == BARE:
                rows = [row for row in rows if row[1] == "step" or (row[1] == "data" and row[4])]
            writer.append_rows("device_steps", rows)
            if number or step.mode == BARE:
                continue
            if step.mode == WARMUP:
                continue
            spans = make_device_span_rows(step.index, self._nodes, account, step.marked, ways)
            writer.append_rows("device_spans", spans)
            if step.traced:
                self._draw_step(step.index, account.wall)
            else:
                self._drawn.add_marks(step.index, moments)
            self._learn_times(account.wall.total_ns, account.wall.calls, step.marked)

    def _draw_step(self, index: int, account: StepAccount) -> None:
        self._traced.add(index)
        self._writer.append_rows("timeline", make_timeline_rows(index, self._nodes, account, "device "))

    def _draw_chosen(self) -> None:
        for kept in self._drawn.choose_steps():
            if kept.on_device and kept.index not in self._traced:
                found = account_device(kept.on_device, self._nodes, self._plan.ways, keep_slices=True)
                self._draw_step(kept.index, found.wall)

    def _learn_times(
        self,
        total_ns: dict[tuple[int, str], int],
        calls: dict[tuple[int, str], int],
        marked: frozenset[int],
    ) -> None:
        longest: dict[int, int] = {}
        for (number, direction), taken_ns in total_ns.items():
            if number in marked and direction in (FORWARD, BACKWARD):
                each_ns = taken_ns // max(1, calls.get((number, direction), 1))
                longest[number] = max(longest.get(number, 0), each_ns)
        self._plan.learn_times(longest, self._clock.mark_cost_ns)


def describe_clock(accelerator: Accelerator, clock: DeviceClock | None) -> dict[str, Any]:
    """What `run.json` says of a device's clock; why there is none, where there is none."""
    if clock is None:
        why = accelerator.unknown.get("clock", f"{accelerator.name} has no clock that can be read")
        return {"source": None, "why": why}
    return {"source": "marks", "mark_cost_ns": clock.mark_cost_ns, "why": clock.failure}


def _find_marked(step: OpenStep) -> list[MarkedEvent]:
    """The step's borders and those of its events that have a mark, in order."""
    found: list[MarkedEvent] = []

    def add(code: int | None, host_ns: int, mark: DeviceMark | None) -> None:
        if mark is not None:
            found.append(MarkedEvent(code, host_ns, mark))

    begin, arrived = step.begin_marks
    add(None, step.start_ns, begin)
    if step.waited_ns > step.start_ns and begin is not None and arrived is not None:
        add(_DATA_BEGINS, step.start_ns, begin)
        add(_DATA_ENDS, step.waited_ns, arrived)
    times: Sequence[int] = step.events[TIME::WIDTH]
    for place, mark in enumerate(step.handles):
        if mark is not None:
            add(step.events[place * WIDTH], times[place], mark)
    add(None, step.end_ns, step.end_mark)
    return found if len({id(event.mark.event) for event in found}) > 1 else []
