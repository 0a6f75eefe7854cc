"""From the events of one step to who owns which slice of time. Pure: numbers in, numbers out.

Between two neighbouring events exactly one owner is running, so slices tile the step: phases add up
to the step, and self times to their phase, by construction. In the backward phase the owner is
the node that was marked last (marks sit on autograd nodes at module borders). The direction of a slice
is its phase, but `recompute` for modules that run forward inside the backward phase (checkpointing).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from detscope.record.events import ENTER, EXIT, WIDTH
from detscope.record.nodes import NodeTable

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
OUTSIDE = -1  # owner of time that belongs to no node


@dataclass
class Slice:
    """A stretch of time with one owner; `ancestors` are outermost first and end with the owner."""

    start_ns: int
    end_ns: int
    phase: str
    direction: str
    ancestors: tuple[int, ...]


@dataclass
class StepAccount:
    """Where one step's time went, in ns."""

    start_ns: int
    end_ns: int
    phases: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    self_ns: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    total_ns: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    stages: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    outside: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # per phase: in no node
    slices: list[Slice] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def wall_ns(self) -> int:
        """Length of the step."""
        return self.end_ns - self.start_ns


class _Frame:
    __slots__ = ("ancestors", "direction", "is_phase", "number", "phase", "stage", "start_ns")

    def __init__(
        self,
        number: int,
        start_ns: int,
        is_phase: bool,
        phase: str,
        direction: str,
        stage: str | None,
        ancestors: tuple[int, ...],
    ) -> None:
        self.number = number
        self.start_ns = start_ns
        self.is_phase = is_phase
        self.phase = phase
        self.direction = direction
        self.stage = stage
        self.ancestors = ancestors


def replay(
    events: Sequence[int],
    nodes: NodeTable,
    start_ns: int,
    end_ns: int,
    keep_slices: bool = False,
    times: Sequence[int] | None = None,
) -> StepAccount:
    """Account for one step. `times` replaces host times (one per event) by device times."""
    return _Replay(nodes, start_ns, end_ns, keep_slices).run(events, times)


class _Replay:
    """State of one pass over the events."""

    def __init__(self, nodes: NodeTable, start_ns: int, end_ns: int, keep_slices: bool) -> None:
        self.nodes = nodes
        self.account = StepAccount(start_ns, end_ns)
        self.keep_slices = keep_slices
        self.stack: list[_Frame] = []
        self.last_ns = start_ns
        self.marked = OUTSIDE
        # how each node was reached in the forward pass of this step, for its backward time
        self.way: dict[int, tuple[tuple[int, ...], str | None]] = {}

    def run(self, events: Sequence[int], times: Sequence[int] | None) -> StepAccount:
        """Walk over all events, then close what is still open."""
        for index in range(0, len(events), WIDTH):
            code = events[index]
            time_ns = events[index + 1] if times is None else times[index // WIDTH]
            self._slice_until(time_ns)
            number, what = code >> 2, code & 3
            if what == ENTER:
                self._enter(number, time_ns)
            elif what == EXIT:
                self._exit(number, time_ns)
            else:
                self.marked = number
        self._slice_until(self.account.end_ns)
        while self.stack:
            frame = self.stack[-1]
            self.account.problems.append(f"{self.nodes[frame.number].path} began and did not end")
            self._exit(frame.number, self.account.end_ns)
        self._roll_up_backward()
        return self.account

    def _slice_until(self, time_ns: int) -> None:
        duration = time_ns - self.last_ns
        if duration <= 0:
            return
        account = self.account
        phase, direction, ancestors, stage = self._owner()
        account.phases[phase] += duration
        if ancestors:
            account.self_ns[ancestors[-1], direction] += duration
            if stage is not None:
                account.stages[stage, direction] += duration
            else:
                account.stages["", direction] += duration
        else:
            account.outside[phase] += duration
        if self.keep_slices:
            account.slices.append(Slice(self.last_ns, time_ns, phase, direction, ancestors))
        self.last_ns = time_ns

    def _owner(self) -> tuple[str, str, tuple[int, ...], str | None]:
        if not self.stack:
            return "other", "other", (), None
        top = self.stack[-1]
        if top.is_phase and top.phase == "backward" and self.marked != OUTSIDE:
            ancestors, stage = self.way.get(self.marked, ((self.marked,), None))
            return "backward", BACKWARD, ancestors, stage
        return top.phase, top.direction, top.ancestors, top.stage

    def _enter(self, number: int, time_ns: int) -> None:
        node = self.nodes[number]
        parent = self.stack[-1] if self.stack else None
        if node.kind == "phase":
            if node.path == "backward":
                self.marked = OUTSIDE
            self.stack.append(_Frame(number, time_ns, True, node.path, node.path, None, ()))
            return
        phase = parent.phase if parent else "other"
        direction = RECOMPUTE if phase == "backward" else phase
        stage = node.stage if node.stage is not None else (parent.stage if parent else None)
        ancestors = (*(parent.ancestors if parent else ()), number)
        if direction != RECOMPUTE:
            self.way[number] = (ancestors, stage)
        self.stack.append(_Frame(number, time_ns, False, phase, direction, stage, ancestors))

    def _exit(self, number: int, time_ns: int) -> None:
        stack = self.stack
        if not any(frame.number == number for frame in stack):
            self.account.problems.append(f"{self.nodes[number].path} ended and had not begun")
            return
        while True:  # an exception may have skipped inner exits
            frame = stack.pop()
            if not frame.is_phase:
                key = (frame.number, frame.direction)
                self.account.calls[key] += 1
                if frame.number not in frame.ancestors[:-1]:  # recursion counts once
                    self.account.total_ns[key] += time_ns - frame.start_ns
            if frame.number == number:
                return

    def _roll_up_backward(self) -> None:
        account = self.account
        for (number, direction), duration in account.self_ns.items():
            if direction != BACKWARD:
                continue
            ancestors, _ = self.way.get(number, ((number,), None))
            for ancestor in set(ancestors):
                account.total_ns[ancestor, BACKWARD] += duration
        for (number, direction), calls in list(account.calls.items()):
            if direction != RECOMPUTE and (number, BACKWARD) in account.total_ns:
                account.calls[number, BACKWARD] = calls
