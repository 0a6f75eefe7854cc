"""Watches memory step by step: a profiler session per step, one following the other without a gap.

Watching begins with the first step of all: the CPU allocator reports the release of a block only if it
reported its allocation. Rows are kept of measured steps; of a warm-up step only if memory ran out in it.
"""

from __future__ import annotations

import io
import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from detscope.machine.accelerator import find_accelerator
from detscope.machine.device_memory import count_cublas_workspace
from detscope.record.foreign import WeakObjects
from detscope.record.memory.ledger import MemoryLedger, Row, StepObservations, TensorHolders
from detscope.record.memory.live import (
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    Level,
    LiveObjects,
    describe_inputs,
    find_block_sizes,
    read_levels,
    sum_by_category,
)
from detscope.record.memory.trace import MemorySession, MemoryTrace, SessionResult, SpanBuffer, read_trace
from detscope.record.model.borders import BorderWriter, close_span, open_span
from detscope.record.operators.attribution import NOBODY, find_owners
from detscope.record.operators.profiler import OpenSpans, no_garbage_collection
from detscope.record.steps.events import SPAN_PREFIX
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.tables import OpenStep
from detscope.runs.writer import RunWriter

# Address space kept back while steps run. Its pages are never touched: they cost addresses alone.
RESERVE_BYTES = 128 << 20


def start_table_threads() -> None:
    """Let polars start its threads now: once memory is used up it cannot, and the account would be lost."""
    import polars as pl

    frame = pl.DataFrame({"key": ["a", "b"], "value": [1, 2]})
    frame.lazy().group_by("key").agg(pl.col("value").sum()).collect()
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    buffer.seek(0)
    pl.read_parquet(buffer)
    frame.write_ipc_stream(io.BytesIO(), compression="lz4")


DEFINITION = (
    "bytes of blocks between torch's allocation and release events, and of parameters, buffers, gradients,"
    " optimizer state and batches that were there before; shared storage counts once"
)
_OWNED = (PARAMETERS, GRADIENTS, OPTIMIZER)


@dataclass
class UnfinishedStep:
    """A step that did not end: its blocks that were released, and the operator that began last."""

    step: int
    rows: list[Row] = field(default_factory=list)
    place: dict[str, Any] = field(default_factory=dict)
    lost: bool = False  # no memory was left to read them


class MemoryWatch:
    """Owned by a recorder, which says when steps begin and end."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: WeakObjects[torch.optim.Optimizer],
        nodes: NodeTable,
        buffer: SpanBuffer,
        borders: BorderWriter,
        device: str,
        spans: OpenSpans,
    ) -> None:
        self._live = LiveObjects(model, optimizers)
        self._nodes = nodes
        self._borders = borders
        self._device = device
        self._accelerator = find_accelerator(device)
        self._session = MemorySession(buffer, borders, spans)
        self._reserve: mmap.mmap | None = None
        start_table_threads()
        self._ledger: MemoryLedger | None = None
        self._holders: dict[int, TensorHolders] = {}
        self._gone: list[tuple[int, int]] = []
        self._references: dict[int, weakref.ref[torch.Tensor]] = {}
        self._living: dict[int, set[int]] = {}  # by address: inputs that lie in it
        self._workers: set[int] = set()
        self._data_span: Any = None
        self._begin_mark: int | None = None
        self._first = True  # nothing is known yet of gradients that are there already
        self.unfinished: UnfinishedStep | None = None
        self.steps: list[int] = []
        self.levels: list[Level] = []
        self.live_bytes: dict[str, int] = {}
        buffer.after[nodes.phase_node("backward").number] = self._read_gradients
        buffer.after[nodes.phase_node("optimizer").number] = self._read_first_gradients

    # ---- steps

    def begin_step(self, step: int, shapes: bool) -> None:
        """A step is about to begin; the session that began when the one before ended goes on."""
        if self._reserve is None:
            with suppress(OSError):  # not even that fits
                self._reserve = mmap.mmap(-1, RESERVE_BYTES)
        if not self._session.is_on:
            everything = TensorHolders(self._live.list_everything(), _OWNED)
            if self._ledger is None:
                for node in self._nodes:
                    self._borders.find_mark(node.number)  # made now: their few bytes are not part of a step
                library = count_cublas_workspace() if self._accelerator.kind == "cuda" else None
                self._ledger = MemoryLedger(self._nodes, find_block_sizes(self._device), library)
                self._ledger.first_step = step
                self._ledger.identify_blocks(everything, perf_counter_ns(), "other")
            else:
                self._ledger.resume_after_gap(everything, perf_counter_ns())
            self._session.start(shapes)
        self.levels += read_levels(step, self._workers, self._device)
        if self._begin_mark is None:
            self._begin_mark = self._session.write_moment()
        self._end_data()
        self._data_span = open_span(f"{SPAN_PREFIX}{self._nodes.phase_node('data').number}")

    def add_inputs(self, batch: Any, worker_pid: int | None) -> None:
        """The batch is there: its tensors are the step's inputs."""
        self._end_data()
        if not self._session.is_on:
            return
        if worker_pid is not None:
            self._workers.add(worker_pid)
        found = describe_inputs(batch)
        for tensor, item in found:
            self._watch_life(tensor, item.address)
        self._holders[self._session.write_moment()] = TensorHolders([item for _, item in found])

    def end_step(self, step: OpenStep, measured: bool, next_with_shapes: bool | None) -> list[Row]:
        """Account for a step that has ended; the next session begins first, so that nothing is missed.

        Shapes of everything are recorded in warm-up steps only; None: there is no next session.
        """
        self._end_data()
        if not self._session.is_on:
            return []
        recorded, observed = self._stop_session(step.index, step.end_ns)
        self.live_bytes = sum_by_category(observed.at_end.held)
        if next_with_shapes is not None:
            self._session.start(next_with_shapes)
        _, ledger = self._add_step(recorded, step.events, observed)
        self.levels += read_levels(step.index, self._workers, self._device)
        rows = ledger.take_rows()
        self._first = False
        if not measured:
            ledger.forget_before(step.index + 1)
            return []
        self.steps.append(step.index)
        return rows

    def abandon_step(self, step: int, events: Sequence[int]) -> None:
        """Account for a step that did not end; without room for it, what was recorded of the step is lost."""
        self._end_data()
        self._give_room_up()
        if not self._session.is_on:
            return
        try:
            recorded, observed = self._stop_session(step, perf_counter_ns())
            trace, ledger = self._add_step(recorded, events, observed)
        except MemoryError:
            self.unfinished = UnfinishedStep(step, lost=True)
            return
        place: dict[str, Any] = {}
        if trace.last_operator is not None:  # where memory ran out, that is the one that asked for it
            start_ns, last = trace.last_operator
            module = None if last.owner == NOBODY else self._nodes[last.owner].path
            place = {"operator": last.operator, "module": module, "time_ns": start_ns - observed.offset_ns}
        self.unfinished = UnfinishedStep(step, ledger.take_rows(), place)

    def pause_session(self) -> None:
        """Something else is going to run; what it allocates is not recorded."""
        self._end_data()
        if self._session.is_on:
            self._stop_session(-1, 0)

    def write_rest(self, writer: RunWriter, keep_unfinished: bool) -> None:
        """Write what is alive in the end; a step without an end counts only where memory ran out in it."""
        self._give_room_up()
        self.pause_session()
        unfinished = self.unfinished
        if unfinished and keep_unfinished:
            writer.append_rows("memory", unfinished.rows)
        ledger = self._ledger
        if ledger is not None and (self.steps or keep_unfinished):
            ledger.write_alive(unfinished.step if unfinished and not keep_unfinished else None)
            writer.append_rows("memory", ledger.take_rows())
        writer.append_rows("memory_levels", self.levels)
        writer.info["memory"] = {
            "definition": DEFINITION,
            "steps": self.steps,
            "times": "step, phase and module times come from other steps, recorded without memory",
            "live_bytes": self.live_bytes,  # counted from the live tensors when the last step had ended
            "unknown_frees": ledger.unknown_frees if ledger else 0,
            "unknown_free_bytes": ledger.unknown_free_bytes if ledger else 0,
            "unseen_frees": ledger.unseen_frees if ledger else 0,
            "own_bytes": self._session.own_bytes,  # what this account itself took in the process
            "unfinished_lost": self.unfinished is not None and self.unfinished.lost,
        }

    # ---- inside a step

    def _read_gradients(self, complete: tuple[str, ...] = ()) -> None:
        """A backward pass has ended: these are the gradients, until somebody clears them."""
        if self._session.is_on:
            self._holders[self._session.write_moment()] = TensorHolders(self._live.list_gradients(), complete)

    def _read_first_gradients(self) -> None:
        """Gradients from before recording go without an event: look once more after the first clearing."""
        if self._first:
            self._read_gradients((GRADIENTS,))

    def _watch_life(self, tensor: torch.Tensor, address: int) -> None:
        """Memory that workers share is released without an event; the tensor itself tells."""
        key = id(tensor)
        if key in self._references:
            return
        gone, references, living = self._gone, self._references, self._living
        living.setdefault(address, set()).add(key)

        def when_gone(_: Any) -> None:
            references.pop(key, None)
            living[address].discard(key)
            if not living[address]:  # the last one of a batch that came in one piece
                del living[address]
                gone.append((perf_counter_ns(), address))

        references[key] = weakref.ref(tensor, when_gone)

    def _give_room_up(self) -> None:
        """A step has failed, or the run ends: the room is needed now."""
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None

    def _end_data(self) -> None:
        if self._data_span is not None:
            close_span(self._data_span)
            self._data_span = None

    # ---- between steps

    def _stop_session(self, step: int, end_ns: int) -> tuple[SessionResult, StepObservations]:
        recorded = self._session.stop()
        gone, self._gone[:] = self._gone[:], []
        holders, self._holders = self._holders, {}
        mark, self._begin_mark = self._begin_mark, None
        at_end = TensorHolders(self._live.list_everything(), _OWNED)
        return recorded, StepObservations(step, end_ns, at_end, holders, gone, mark, recorded.seen)

    def _add_step(
        self, recorded: SessionResult, events: Sequence[int], observed: StepObservations
    ) -> tuple[MemoryTrace, MemoryLedger]:
        assert self._ledger is not None  # made when the session began
        with no_garbage_collection():
            owners = find_owners(events, self._nodes)
            tree = recorded.results.experimental_event_tree()
            trace = read_trace(tree, self._nodes, owners, self._accelerator.is_host)
            known = [mark for mark in recorded.clock if mark[1] in trace.marks]
            _, mark, before_ns = min(known, default=(0, 0, 0))  # the quickest is believed
            offset_ns = observed.offset_ns = trace.marks.get(mark, 0) - before_ns
            observed.seen = recorded.seen + [
                seen._replace(time_ns=seen.time_ns - offset_ns) for seen in trace.inputs
            ]
            self._ledger.add_step(trace, observed)
        return trace, self._ledger
