"""The recorder's bookkeeping between steps: accounts, rows, operators, device times that arrive late."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from detscope.record.content import BatchContent
from detscope.record.loader import BatchTiming
from detscope.record.memory.growth import GrowthWatch
from detscope.record.operators.attribution import attribute
from detscope.record.operators.device_rows import StepSpan, device_tables
from detscope.record.operators.profiler import OperatorEvents, no_garbage_collection
from detscope.record.steps.events import DeviceClock
from detscope.record.steps.layouts import KeptStep, RepeatedSteps, events_of, moments_of
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.replay import StepAccount, replay
from detscope.record.steps.rows import loader_rows, processor_rows, span_rows, step_rows, timeline_rows
from detscope.record.steps.schedule import BARE, OPERATORS, RECORDED, WARMUP
from detscope.runs.writer import RunWriter


@dataclass
class OpenStep:
    """A step while it runs and until its rows are written."""

    index: int
    epoch: int
    mode: str
    start_ns: int
    waited_ns: int  # when the batch had arrived
    pause_ns: int
    first_of_epoch: bool
    timing: BatchTiming | None
    end_ns: int = 0
    first_handle: Any = None
    events: list[int] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    processor: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    content: BatchContent = field(default_factory=BatchContent)


class Notebook:
    """Turns finished steps into rows, in order; waits for device times without blocking the loop."""

    def __init__(
        self, writer: RunWriter, nodes: NodeTable, traced_steps: int, device_clock: DeviceClock | None
    ) -> None:
        self._writer = writer
        self._nodes = nodes
        self._traced_left = traced_steps
        self._device_clock = device_clock
        self._waiting: deque[OpenStep] = deque()
        self._repeats = RepeatedSteps(nodes)
        writer.before_writing = self.hand_over
        self._operator_events: list[int] = []
        self._operator_steps: list[int] = []
        self._operator_spans: list[StepSpan] = []
        self._nodes_written = 0
        self._drawn_until_ns = 0  # end of the first operator step that the trace shows
        self._growth = GrowthWatch()

    def step(self, step: OpenStep) -> None:
        """Take a finished step; write it now, or when the device has caught up."""
        with no_garbage_collection():
            if step.mode not in (RECORDED, BARE):
                self._growth.start_again()
            elif not self._traced_left:  # rows of the trace take memory of their own
                self._growth.ends_step(step.index)
            self._take(step)

    def _take(self, step: OpenStep) -> None:
        if step.mode == OPERATORS:
            self._operator_events += step.events
            self._operator_steps.append(step.index)
            self._operator_spans.append(StepSpan(step.index, step.start_ns, step.waited_ns, step.end_ns))
        self._waiting.append(step)
        self._write_ready(wait=False)

    def close(self, telemetry: list[tuple[Any, ...]]) -> None:
        """Write what is still waiting."""
        if self._waiting and self._device_clock is not None:
            self._device_clock.wait()
        self._write_ready(wait=True)
        self._writer.append("telemetry", telemetry)
        self._writer.info["growth"] = self._growth.describe()

    def _write_ready(self, wait: bool) -> None:
        while self._waiting:
            step = self._waiting[0]
            clock = self._device_clock
            if clock is not None and step.handles and not wait and not clock.ready(step.handles[-1]):
                return
            self._waiting.popleft()
            self._write(step)

    def _write(self, step: OpenStep) -> None:
        data = self._nodes.phase("data").number * 4
        events = [data, step.start_ns, -1, data + 1, step.waited_ns, -1, *step.events]
        traced = step.mode in (RECORDED, OPERATORS) and self._traced_left > 0
        device_times = self._device_times(step)
        layout = None if traced or step.mode == BARE else self._repeats.layout(events)
        if layout is not None:
            moments = moments_of(events, step.start_ns, step.end_ns)
            on_device = None
            if device_times is not None:
                on_device = np.array([0, *device_times, device_times[-1]], np.int64)
            spanned = step.mode != WARMUP
            self._repeats.keep(
                layout, KeptStep(step.index, step.epoch, step.mode, spanned, moments, on_device)
            )
        else:
            account = replay(events, self._nodes, step.start_ns, step.end_ns, keep_slices=traced)
            self._account(step.index, step.epoch, step.mode, account, events, device_times)
            if traced:
                self._trace(step, account)
        writer = self._writer
        if step.timing is not None:
            writer.append("loader", loader_rows(step.index, step.timing, step.waited_ns - step.start_ns))
        if step.mode != BARE:
            writer.append("telemetry", processor_rows(step.start_ns, step.processor, self._nodes))
        writer.append("content", [self._content_row(step)])
        self._write_new_nodes()

    def _account(
        self,
        index: int,
        epoch: int,
        mode: str,
        account: StepAccount,
        events: list[int],
        device_times: list[int] | None,
    ) -> None:
        """Rows of a step that was replayed."""
        writer = self._writer
        if mode == BARE:
            whole = (index, epoch, mode, "step", account.start_ns, account.wall_ns, None)
            wait = (index, epoch, mode, "data", account.start_ns, account.phases["data"], None)
            writer.append("steps", [whole, wait])
            return
        device = None
        if device_times is not None:
            device = replay(events, self._nodes, 0, device_times[-1], times=device_times)
        writer.append("steps", step_rows(index, epoch, mode, account, device))
        if mode != WARMUP and account.self_ns:
            writer.append("spans", span_rows(index, self._nodes, account, device))

    def _trace(self, step: OpenStep, account: StepAccount) -> None:
        self._traced_left -= 1
        if step.mode == OPERATORS and not self._drawn_until_ns:
            self._drawn_until_ns = step.end_ns
        self._writer.append("timeline", timeline_rows(step.index, self._nodes, account))

    def hand_over(self) -> None:
        """Give the writer the rows of steps that were kept as arrays."""
        with no_garbage_collection():
            step_frames, span_frames, odd = self._repeats.take()
            for layout, step in odd:
                events = events_of(layout, step.moments)
                start_ns, *_, end_ns = step.moments.tolist()
                times = None if step.device_moments is None else step.device_moments.tolist()[1:-1]
                account = replay(events, self._nodes, start_ns, end_ns)
                self._account(step.index, step.epoch, step.mode, account, events, times)
            for table, frames in (("steps", step_frames), ("spans", span_frames)):
                for frame in frames:
                    self._writer.append_frame(table, frame, sorted_by="step")

    def _device_times(self, step: OpenStep) -> list[int] | None:
        """Device times of the step's events; waiting for the batch is none of them."""
        clock, first = self._device_clock, step.first_handle
        if clock is None or first is None or not step.handles:
            return None
        times = [0, 0, *(clock.elapsed_ns(first, handle) for handle in step.handles)]
        recycle = getattr(clock, "recycle", None)
        if recycle is not None:
            recycle([first, *step.handles])
        return times

    @staticmethod
    def _content_row(step: OpenStep) -> tuple[Any, ...]:
        content, counts = step.content, step.counts
        return (
            step.index,
            content.images,
            content.boxes,
            content.pixels,
            counts.get("network_pixels"),
            counts.get("padded_pixels"),
            counts.get("proposals"),
            counts.get("sampled_rois"),
            counts.get("detections"),
            step.pause_ns,
            step.first_of_epoch,
            content.image_ids,
        )

    def _write_new_nodes(self) -> None:
        new = [self._nodes[number] for number in range(self._nodes_written, len(self._nodes))]
        self._nodes_written = len(self._nodes)
        self._writer.append(
            "nodes", [(n.kind, n.path, n.type_name, n.stage, n.parameters) for n in new if n.kind != "phase"]
        )

    def operators(self, raw: OperatorEvents) -> None:
        """Take the operators of a window that has just ended."""
        with no_garbage_collection():
            result = attribute(raw, self._nodes, self._operator_events)
            self._writer.append_frame("ops", result.operators)
            frames = device_tables(raw, result, self._nodes, self._operator_events, self._operator_spans)
            for table, frame in zip(("device_events", "host_events"), frames or (), strict=False):
                self._writer.append_frame(table, frame)
            if self._drawn_until_ns:
                self._draw("operators", result.host)
                self._draw("kernels", result.device)
        self._writer.info["operators"] = {
            "steps": max(1, len(self._operator_steps)),
            "backward_attributed": result.backward_share,
            "backward_ns": result.backward_ns,
            "kernels_unlinked": result.kernels_unlinked,
        }
        self._operator_events, self._operator_steps, self._operator_spans = [], [], []

    def forget_operators(self) -> None:
        """A window was given up: what its steps noted for it belongs to none."""
        self._operator_events, self._operator_steps, self._operator_spans = [], [], []

    def _draw(self, track: str, intervals: pl.DataFrame) -> None:
        """Put operators of the steps that the trace shows on the time line."""
        drawn = intervals.filter(pl.col("start_ns") < self._drawn_until_ns)
        step = self._operator_steps[0] if self._operator_steps else -1
        self._writer.append_frame(
            "timeline",
            drawn.select(
                pl.lit(step, pl.Int64).alias("step"),
                pl.lit(track).alias("track"),
                "name",
                pl.lit("").alias("direction"),
                "start_ns",
                "wall_ns",
            ),
        )
