"""Rows of finished steps: accounts and operators.

Rows go to the writer, in order. The writer knows nothing of this: whoever wants rows on disk asks here
(`flush_rows`, `close_tables`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from detscope.record.content import BatchContent
from detscope.record.device.clock import DeviceMark
from detscope.record.loader import BatchTiming
from detscope.record.memory.growth import GrowthWatch
from detscope.record.operators.attribution import StepSpan, attribute_operators, make_device_tables
from detscope.record.operators.profiler import no_garbage_collection
from detscope.record.steps.drawn import DrawnSteps, KeptEvents
from detscope.record.steps.events import ENTER, EXIT, NO_SEQUENCE, decode_events, encode_event
from detscope.record.steps.layouts import KeptStep, RepeatedSteps, join_events, moments_of
from detscope.record.steps.nodes import PHASES, NodeTable
from detscope.record.steps.replay import StepAccount, Way, replay_events
from detscope.record.steps.rows import (
    make_loader_rows,
    make_processor_rows,
    make_span_rows,
    make_step_rows,
    make_timeline_rows,
    make_transform_rows,
)
from detscope.record.steps.schedule import BARE, OPERATORS, RECORDED, WARMUP
from detscope.runs.writer import RunWriter, polars_schema
from detscope.traces.columns import TraceEvents

_COUNTS = ("network_pixels", "padded_pixels", "proposals", "sampled_rois", "detections")
_DATA = PHASES.index("data")
_DATA_BEGINS, _DATA_ENDS = encode_event(_DATA, ENTER), encode_event(_DATA, EXIT)


@dataclass
class OpenStep:
    """A step while it runs and until its rows are written."""

    index: int
    epoch: int
    mode: str
    start_ns: int
    waited_ns: int  # when the batch had arrived
    pause_ns: int = 0
    first_of_epoch: bool = False
    timing: BatchTiming | None = None
    end_ns: int = 0
    # on a device with a clock: when the batch was asked for and had come, those of events, the end
    begin_marks: tuple[DeviceMark | None, DeviceMark | None] = (None, None)
    end_mark: DeviceMark | None = None
    marked: frozenset[int] = frozenset()  # nodes whose borders have marks
    events: list[int] = field(default_factory=list)
    handles: list[DeviceMark | None] = field(default_factory=list)
    processor: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    content: BatchContent = field(default_factory=BatchContent)

    def content_row(self) -> tuple[Any, ...]:
        """Its row of the table `content`."""
        content = self.content
        told = self.counts
        if content.padded_pixels is not None and content.pixels is not None:
            told = {"network_pixels": content.pixels, "padded_pixels": content.padded_pixels, **told}
        counts = [told.get(name) for name in _COUNTS]
        found = (content.images, content.boxes, content.pixels, *counts)
        return (self.index, *found, self.pause_ns, self.first_of_epoch, content.image_ids)


class StepTables:
    """Turns finished steps into rows, on the host's clock."""

    def __init__(
        self,
        writer: RunWriter,
        nodes: NodeTable,
        traced_steps: int,
        tell_ways: Callable[[Mapping[int, Way]], None] = lambda _ways: None,
    ) -> None:
        self._writer = writer
        self._nodes = nodes
        self._traced_left = traced_steps
        self._traced: set[int] = set()
        self._waiting: list[KeptEvents] = []  # to be drawn: milliseconds that no two steps shall wait for
        self._bare: list[OpenStep] = []  # since rows were asked for: what is compared with them waits less
        self._bare_told = 0  # of these, whose content is written: that of all steps is in their order
        self.drawn = DrawnSteps(wanted=traced_steps > 0)
        self._tell_ways = tell_ways  # how nodes are reached, as far as that is new
        self._repeats = RepeatedSteps(nodes)
        self._operator_events: list[int] = []
        self.operator_spans: list[StepSpan] = []  # of the steps of the window of operators that is open
        self._operator_sums = [0] * 4  # of all windows: steps, backward, of that in modules, unlinked
        self._nodes_written = 0
        self._drawn_until_ns = 0  # end of the first operator step that the trace shows
        self._growth = GrowthWatch()

    def add_step(self, step: OpenStep) -> bool:
        """Take a finished step; whether it is drawn into the trace."""
        with no_garbage_collection():
            if step.mode not in (RECORDED, BARE):
                self._growth.start_again()
            elif not self._traced_left:  # rows of the trace take memory of their own
                self._growth.end_step(step.index)
            if step.mode == OPERATORS:
                self._operator_events += step.events
                self.operator_spans.append(StepSpan(step.index, step.start_ns, step.waited_ns, step.end_ns))
            return self._write_step(step)

    def flush_rows(self, wait: bool = True) -> None:
        """Have everything that is ready written to disk; of steps to be drawn, one."""
        self._write_repeated()
        if self._waiting:
            self._draw_step(self._waiting.pop(0))
        self._writer.flush_parts(wait)

    def close_tables(self, telemetry: list[tuple[Any, ...]]) -> None:
        """Give the writer what is still waiting."""
        self._write_repeated()
        self._draw_chosen()
        self._writer.append_rows("telemetry", telemetry)
        self._writer.info["growth"] = self._growth.describe_growth()

    def _draw_chosen(self) -> None:
        chosen = [kept for kept in self.drawn.choose_steps() if kept.index not in self._traced]
        for kept in (*self._waiting, *chosen):
            self._draw_step(kept)

    def _draw_step(self, kept: KeptEvents) -> None:
        account = replay_events(kept.events, self._nodes, kept.start_ns, kept.end_ns, keep_slices=True)
        self._writer.append_rows("timeline", make_timeline_rows(kept.index, self._nodes, account))

    def _write_step(self, step: OpenStep) -> bool:
        if step.mode == BARE:
            self.keep_bare(step)
            return False
        waiting = (_DATA_BEGINS, step.start_ns, NO_SEQUENCE, _DATA_ENDS, step.waited_ns, NO_SEQUENCE)
        events = [*waiting, *step.events]
        traced = step.mode in (RECORDED, OPERATORS) and self._traced_left > 0
        self.drawn.offer_step(step.index, step.mode, step.start_ns, step.end_ns, events)
        if traced:
            self._traced_left -= 1
            self._traced.add(step.index)
            self._waiting.append(KeptEvents(step.index, step.start_ns, step.end_ns, array("q", events)))
            if step.mode == OPERATORS and not self._drawn_until_ns:
                self._drawn_until_ns = step.end_ns
        layout = self._repeats.find_layout(events)
        if layout is not None:
            moments = moments_of(events, step.start_ns, step.end_ns)
            self._repeats.keep_step(layout, KeptStep(step.index, step.epoch, step.mode, moments))
        else:
            account = replay_events(events, self._nodes, step.start_ns, step.end_ns)
            self._tell_ways(account.ways)
            self._write_account(step, account)
        processor = make_processor_rows(step.start_ns, step.processor, self._nodes)
        self._writer.append_rows("telemetry", processor)
        self._write_bare_contents()
        self._write_content(step)
        new = self._nodes.in_order[self._nodes_written :]
        self._nodes_written = len(self._nodes)
        named = [(n.kind, n.path, n.type_name, n.stage, n.parameters) for n in new if n.kind != "phase"]
        self._writer.append_rows("nodes", named)
        return traced

    @property
    def wants_every_step(self) -> bool:
        """Whether steps are being compared with their neighbours."""
        return self._growth.is_looking

    def keep_bare(self, step: OpenStep) -> None:
        """Take a bare step; its rows come when rows are asked for."""
        self._bare.append(step)

    def _write_content(self, step: OpenStep) -> None:
        writer = self._writer
        if step.timing is not None:
            wait_ns = step.waited_ns - step.start_ns
            writer.append_rows("loader", make_loader_rows(step.index, step.timing, wait_ns))
            writer.append_rows("transforms", make_transform_rows(step.index, step.timing))
        writer.append_rows("content", [step.content_row()])

    def _write_bare_contents(self) -> None:
        for step in self._bare[self._bare_told :]:
            self._write_content(step)
        self._bare_told = len(self._bare)

    def _write_bare(self) -> None:
        """Of bare steps: how long they took, the waiting for data, and what was in them."""
        rows = []
        for step in self._bare:
            data_ns, since_ns = step.waited_ns - step.start_ns, 0
            for number, action, time_ns, _ in decode_events(step.events):
                if number == _DATA:
                    data_ns += time_ns - since_ns if action == EXIT and since_ns else 0
                    since_ns = time_ns if action == ENTER else 0
            about = (step.index, step.epoch, step.mode)
            lengths = {"step": step.end_ns - step.start_ns, "data": data_ns}
            rows += [(*about, name, step.start_ns, wall_ns, None) for name, wall_ns in lengths.items()]
        self._write_bare_contents()
        self._bare, self._bare_told = [], 0
        if rows:
            schema = polars_schema("steps")
            self._writer.append_frame("steps", pl.DataFrame(rows, schema, orient="row"), sorted_by="step")

    def _write_account(self, step: OpenStep | KeptStep, account: StepAccount) -> None:
        about = (step.index, step.epoch, step.mode)
        self._writer.append_rows("steps", make_step_rows(*about, account))
        if step.mode != WARMUP and account.self_ns:
            self._writer.append_rows("spans", make_span_rows(step.index, self._nodes, account))

    def _write_repeated(self) -> None:
        with no_garbage_collection():
            self._write_bare()
            frames, odd = self._repeats.take_frames()
            for layout, step in odd:
                events = join_events(layout, step.moments)
                start_ns, *_, end_ns = step.moments.tolist()
                self._write_account(step, replay_events(events, self._nodes, start_ns, end_ns))
            for table, frame in frames:
                self._writer.append_frame(table, frame, sorted_by="step")

    def add_operators(self, raw: TraceEvents) -> None:
        """Take the operators of a window that has just ended; windows that were cut in two are summed up."""
        spans = self.operator_spans
        with no_garbage_collection():
            result = attribute_operators(raw, self._nodes, self._operator_events, spans)
            self._writer.append_frame("ops", result.operators)
            frames = make_device_tables(result)
            for table, frame in zip(("device_events", "host_events"), frames or (), strict=False):
                self._writer.append_frame(table, frame)
            if self._drawn_until_ns:
                step = spans[0].index if spans else -1
                for track, intervals in (("operators", result.host), ("kernels", result.device)):
                    drawn = intervals.filter(pl.col("start_ns") < self._drawn_until_ns)
                    about = {"step": pl.lit(step, pl.Int64), "track": pl.lit(track), "direction": pl.lit("")}
                    self._writer.append_frame("timeline", drawn.with_columns(**about))
        backward = (result.backward_ns, result.backward_in_modules_ns)
        found = (max(1, len(spans)), *backward, result.kernels_unlinked)
        self._operator_sums = [sum(pair) for pair in zip(self._operator_sums, found, strict=True)]
        steps, backward_ns, in_modules_ns, unlinked = self._operator_sums
        self._writer.info["operators"] = {
            "steps": steps,
            "backward_attributed": in_modules_ns / backward_ns if backward_ns else None,
            "backward_ns": backward_ns,
            "kernels_unlinked": unlinked,
        }
        self.forget_operators()

    def forget_operators(self, all_windows: bool = False) -> None:
        """A window has ended, or was given up; all of them: what they told is not part of the run."""
        self._operator_events, self.operator_spans = [], []
        if all_windows:
            self._operator_sums = [0] * 4
            self._writer.info.pop("operators", None)
