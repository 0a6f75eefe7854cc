"""The account of blocks: every allocation, release and holder in order of time; a row per block."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Any

from detscope.machine.device_memory import may_hold, round_block
from detscope.record.memory.live import INPUTS, HeldTensor, format_dtype, format_shape
from detscope.record.memory.trace import NO_OPERATOR, NOWHERE, Change, MemoryTrace, OperatorContext
from detscope.record.model.borders import SeenTensor
from detscope.record.operators.attribution import NOBODY
from detscope.record.steps.nodes import NodeTable

ACTIVATIONS, TEMPORARY, WORKSPACE, UNKNOWN = "activations", "temporary", "workspace", "unknown"
ALLOCATED_BEFORE = -1  # as a step
# operators that cuBLAS computes
PRODUCTS = tuple(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_addmm"))
# of things at one moment: a phase ends before another begins
_END, _BEGIN, _HOLDERS, _SEEN, _GONE = range(5)


@dataclass(slots=True)
class MemoryBlock:
    """A block of memory from its allocation on; without slots thousands of them would be slow."""

    number: int
    address: int
    bytes: int
    device: str
    alloc_ns: int
    step: int
    phase: str | None
    place: OperatorContext = NOWHERE
    backwards: int = 0  # backward passes that had begun before it
    own: bool = False  # made by the recorder and its owner between steps: no part of the account
    reported: bool = True  # by the allocator; else only seen because something holds it
    category: str | None = None
    name: str | None = None
    shape: str | None = None
    dtype: str | None = None
    seen_bytes: int = 0  # of the largest tensor that was seen in it


Row = tuple[Any, ...]


@dataclass
class TensorHolders:
    """Who held which blocks at a moment."""

    held: list[HeldTensor]
    complete: tuple[str, ...] = ()  # of these categories there are no others


@dataclass
class StepObservations:
    """What is known of a step besides the profiler's events."""

    step: int
    end_ns: int
    at_end: TensorHolders
    holders: dict[int, TensorHolders]  # by the number of their mark
    gone: Sequence[tuple[int, int]]  # time (our clock) and address of inputs that were let go
    begin_mark: int | None  # what was allocated before it came between steps
    seen: Sequence[SeenTensor]
    offset_ns: int = 0  # the profiler's clock less ours


class MemoryLedger:
    """Blocks that are alive, and rows of those that were."""

    def __init__(
        self,
        nodes: NodeTable,
        block_bytes: Callable[[HeldTensor], int] = lambda held: held.bytes,
        library_bytes: int | None = None,
    ) -> None:
        self._nodes = nodes
        self._block_bytes = block_bytes
        self._library_bytes = library_bytes  # of a workspace that cuBLAS keeps; None: there is no cuBLAS
        self.live: dict[int, MemoryBlock] = {}
        self.rows: list[Row] = []
        self.unknown_frees = self.unknown_free_bytes = self.unseen_frees = 0
        self.first_step = 0  # blocks from before it count as alive before recording began
        self._numbers = count(1)
        self._backwards = 0
        self._backwards_after: dict[int, int] = {}  # by step: how many there had been at its end
        self._last_ns = 0
        self._step = 0
        self._phases: list[str] = []  # that are open
        self._backward_operators_ns: list[int] = []
        # by module, operator, direction and bytes: what was seen of blocks like that in any step
        self._portrait: dict[tuple[int, str | None, str | None, int], tuple[str, str]] = {}
        # by module and bytes: what passed its border
        self._shapes: dict[int, dict[int, tuple[str, str]]] = {}

    def add_step(self, trace: MemoryTrace, observed: StepObservations) -> None:
        """Account for one step."""
        offset_ns = observed.offset_ns
        self._step = observed.step
        self._shapes.clear()
        self._phases.clear()
        self._backward_operators_ns = [time_ns - offset_ns for time_ns in trace.backward_operators_ns]
        # all but the allocator's changes, by our clock, the last first
        others: list[tuple[int, int, Any]] = []
        for start_ns, end_ns, name in trace.phases:
            others += (start_ns - offset_ns, _BEGIN, name), (end_ns - offset_ns, _END, name)
        for number, holders in observed.holders.items():
            if number in trace.marks:
                others.append((trace.marks[number] - offset_ns, _HOLDERS, holders))
        others += [(seen.time_ns, _SEEN, seen) for seen in observed.seen]
        others += [(time_ns, _GONE, address) for time_ns, address in observed.gone]
        others.sort(key=itemgetter(0, 1), reverse=True)
        begin_ns = trace.marks.get(observed.begin_mark or 0, 0) - offset_ns
        for change in trace.changes:
            time_ns = change[0] - offset_ns
            while others and others[-1][0] <= time_ns:
                self._apply_other(*others.pop())
            self._apply_change(change, self._next_time(time_ns), time_ns < begin_ns)
        while others:
            self._apply_other(*others.pop())
        self.identify_blocks(observed.at_end, self._next_time(observed.end_ns), "other")
        self._backwards_after[observed.step] = self._backwards

    def _apply_other(self, time_ns: int, what: int, item: Any) -> None:
        """Something that is no change of a block the allocator reported."""
        phases = self._phases
        if what == _BEGIN:
            phases.append(item)
            self._backwards += item == "backward"
        elif what == _END:
            if item in phases:
                del phases[len(phases) - 1 - phases[::-1].index(item)]
        elif what == _HOLDERS:
            self.identify_blocks(item, time_ns, self._open_phase)
        elif what == _SEEN:
            size = item.shape.numel() * item.dtype.itemsize
            texts = format_shape(item.shape), format_dtype(item.dtype)
            self._shapes.setdefault(item.owner, {})[size] = texts
            block = self.live.get(item.address)
            if block is None or block.name is not None or block.seen_bytes > size:
                return
            if block.bytes == size or (block.device != "cpu" and may_hold(block.bytes, size)):
                (block.shape, block.dtype), block.seen_bytes = texts, size
        else:
            time_ns, block = self._next_time(time_ns), self.live.get(item)
            if block is not None and not block.reported:
                self._close_block(block, time_ns, self._open_phase)

    @property
    def _open_phase(self) -> str:
        return self._phases[-1] if self._phases else "other"

    def identify_blocks(self, holders: TensorHolders, time_ns: int, phase: str) -> None:
        """Blocks that somebody holds get their category and name; those not seen before appear."""
        holding: set[int] = set()
        for item in holders.held:
            if item.address in holding:
                continue
            holding.add(item.address)
            block = self.live.get(item.address)
            if block is not None and not block.reported and block.bytes != self._block_bytes(item):
                self._close_block(block, self._next_time(time_ns), phase)  # another one took its place
                block = None
            if block is None:
                # from before recording, or an input that is not the allocator's
                about = (next(self._numbers), item.address, self._block_bytes(item), item.device)
                block = MemoryBlock(*about, 0, ALLOCATED_BEFORE, None)
                if item.category == INPUTS and item.outside:
                    block.alloc_ns, block.step, block.phase = self._next_time(time_ns), self._step, "data"
                block.reported = False
                self.live[item.address] = block
            block.category, block.name = item.category, item.name
            block.shape, block.dtype = item.shape, item.dtype
        if holders.complete:
            for block in list(self.live.values()):
                if block.category in holders.complete and block.address not in holding:
                    if block.reported:  # still allocated, by somebody else: known by its life alone
                        block.category = block.name = None
                    else:
                        self._close_block(block, self._next_time(time_ns), phase)

    def resume_after_gap(self, holders: TensorHolders, time_ns: int) -> None:
        """After a gap without events: what nobody holds is taken as released in it."""
        holding = {item.address for item in holders.held}
        for block in list(self.live.values()):
            if block.address not in holding:
                self._close_block(block, self._next_time(time_ns), "other")
        self.identify_blocks(holders, time_ns, "other")

    def write_alive(self, without_step: int | None = None) -> None:
        """Rows of what is still alive; but not of a step that is not part of the run."""
        for block in self.live.values():
            if block.step != without_step:
                self._write_row(block, self._last_ns + 1, None, NO_OPERATOR, last_step=True)
        self.live.clear()

    def forget_before(self, step: int) -> None:
        """Steps before this one are not part of the account; what is alive stays."""
        self.first_step = step
        self.unknown_frees = self.unknown_free_bytes = self.unseen_frees = 0

    def take_rows(self) -> list[Row]:
        """Hand over the rows of blocks that were released."""
        rows, self.rows = self.rows, []
        return rows

    def _next_time(self, time_ns: int) -> int:
        """Times of changes never repeat: their order is the account's order."""
        self._last_ns = max(time_ns, self._last_ns + 1)
        return self._last_ns

    def _apply_change(self, change: Change, time_ns: int, between_steps: bool) -> None:
        _, address, size, device, place = change
        phase = self._open_phase
        block = self.live.get(address)
        if size < 0:
            if block is None:
                self.unknown_frees += 1
                self.unknown_free_bytes -= size
            else:
                self._close_block(block, time_ns, phase, place.run)
            return
        if block is not None:  # its release was not reported: it was allocated before recording began
            self.unseen_frees += 1
            self._close_block(block, time_ns, phase)
            time_ns = self._next_time(time_ns)
        block = MemoryBlock(next(self._numbers), address, size, device, time_ns, self._step, phase)
        block.place, block.backwards, block.own = place, self._backwards, between_steps
        self.live[address] = block

    def _find_category(
        self, block: MemoryBlock, time_ns: int, phase: str | None, run: int, last_step: bool
    ) -> str:
        """By when and where a block was made and let go; `last_step`: recording ended before that."""
        if block.category is not None:
            return block.category
        is_product = (block.place.operator or "").startswith(PRODUCTS)
        if is_product and block.bytes == self._library_bytes and block.device != "cpu":
            block.name = "cuBLAS"
            return WORKSPACE
        if block.step == ALLOCATED_BEFORE:
            return UNKNOWN
        same_step = self._step == block.step
        if same_step and block.place.run != NO_OPERATOR and block.place.run == run:
            return WORKSPACE
        if block.place.direction == "recompute":
            began = self._backward_operators_ns
            used = bisect_right(began, time_ns) > bisect_right(began, block.alloc_ns)
            return ACTIVATIONS if used or not same_step else TEMPORARY
        let_go_inside = same_step and not last_step
        if block.phase in ("backward", "optimizer"):
            return TEMPORARY if let_go_inside else UNKNOWN
        # made before the backward pass: kept for it, an input, or neither
        if block.phase == "transfer" and phase != "transfer":
            return "inputs"
        backwards = self._backwards
        if block.phase != "forward" and not same_step:  # outside of the model: those of its own step count
            backwards = self._backwards_after.get(block.step, backwards)
        if backwards > block.backwards:
            return ACTIVATIONS
        # without a backward pass: what a pass gave out is let go when the next one replaces it
        replaced = block.phase == "forward" and self._step - block.step <= 1
        return TEMPORARY if replaced or let_go_inside else UNKNOWN

    def _find_shape(self, block: MemoryBlock, category: str) -> None:
        """A gradient, and what a module makes inside, has the shape of what passes the module's border."""
        if block.name is not None or category not in (TEMPORARY, ACTIVATIONS):
            return
        owner, operator = block.place.owner, block.place.operator
        alike = (owner, operator, block.place.direction, block.bytes)
        if block.shape is not None:
            self._portrait[alike] = (block.shape, block.dtype or "")
            return
        found = self._find_border_shape(block) or self._portrait.get(alike)
        if found is None and "max_pool" in (operator or ""):  # where each maximum was
            half = self._find_border_shape(block, times=2)
            found = (half[0], "int64") if half is not None and half[1] == "float32" else None
        if found is not None:
            block.shape, block.dtype = found

    def _find_border_shape(self, block: MemoryBlock, times: int = 1) -> tuple[str, str] | None:
        """What passed the border of the block's module and has its size, where `times` as large."""
        passed = self._shapes.get(block.place.owner, {})
        if block.device == "cpu":
            return passed.get(block.bytes // times)
        return next((passed[size] for size in passed if round_block(times * size) == block.bytes), None)

    def _close_block(self, block: MemoryBlock, time_ns: int, phase: str, run: int = NO_OPERATOR) -> None:
        del self.live[block.address]
        self._write_row(block, time_ns, phase, run)

    def _write_row(
        self, block: MemoryBlock, time_ns: int, phase: str | None, run: int, last_step: bool = False
    ) -> None:
        if block.own and block.category is None:
            return
        place, known = block.place, block.step >= self.first_step
        freed = not last_step
        category = self._find_category(block, time_ns, phase, run, last_step)
        self._find_shape(block, category)
        self.rows.append(
            (
                block.number,
                block.device,
                block.bytes,
                block.alloc_ns if known else None,
                time_ns if freed else None,
                block.step if known else None,
                block.phase,
                self._step if freed else None,
                phase if freed else None,
                place.direction,
                place.stage or None,
                None if place.owner == NOBODY else self._nodes[place.owner].path,
                place.operator,
                category,
                block.name,
                block.shape,
                block.dtype,
                None,
            )
        )
