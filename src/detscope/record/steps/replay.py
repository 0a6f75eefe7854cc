"""From the events of one step to who owns which slice of time. Pure: numbers in, numbers out.

Between two neighbouring events exactly one owner is running, so slices tile the step: phases add up
to the step, and self times to their phase, by construction. In the backward phase the owner is
the node that was marked last (marks sit on autograd nodes at module borders). The direction of a slice
is its phase, but `recompute` for modules that run forward inside the backward phase (checkpointing). What
runs beside the model (kind `part`: averages of weights, metrics, checkpoints) is part of the optimizer's
phase or of `other`, wherever it is called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detscope.record.steps.events import ACTION_MASK, ENTER, EXIT, NO_SEQUENCE, NODE_SHIFT, WIDTH
from detscope.record.steps.nodes import NodeTable

Way = tuple[tuple[int, ...], str | None]  # a node's ancestors, outermost first and itself last; its stage
FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
BESIDE = ("optimizer", "other")  # phases that hold no work of the model


@dataclass
class Slice:
    """A stretch of time with one owner; `ancestors` are outermost first and end with the owner."""

    start_ns: int
    end_ns: int
    phase: str
    direction: str
    ancestors: tuple[int, ...]
    stage: str | None = None


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
    ways: Mapping[int, Way] = field(default_factory=dict)  # how nodes were reached forward

    @property
    def wall_ns(self) -> int:
        """Length of the step."""
        return self.end_ns - self.start_ns


# who runs: phase, direction, ancestors (outermost first, the owner last), stage
_Owner = tuple[str, str, tuple[int, ...], str | None]
_NOBODY: _Owner = ("other", "other", (), None)
_OUTERMOST = (-1, 0, True, _NOBODY)


def replay_events(
    events: Sequence[int],
    nodes: NodeTable,
    start_ns: int,
    end_ns: int,
    keep_slices: bool = False,
    times: Sequence[int] | None = None,
    ways: Mapping[int, Way] | None = None,
) -> StepAccount:
    """Account for one step. `times` replaces those of the events; `ways` tells how nodes are reached."""
    return _Replay(nodes, StepAccount(start_ns, end_ns), keep_slices, ways).run_events(events, times)


def replay_codes(
    codes: Sequence[int], nodes: NodeTable
) -> tuple[StepAccount, list[tuple[tuple[int, str], int, int]]]:
    """Replay events by their codes alone: every moment comes one unit after the one before.

    The account has one slice between any two neighbouring moments; with it, of every call: node and
    direction, moments of its begin and end. Moments are numbered, the step's begin is 0.
    """
    events = [number for code in codes for number in (code, 0, NO_SEQUENCE)]
    walk = _Replay(nodes, StepAccount(0, len(codes) + 1), keep_slices=True)
    walk.closed = []
    return walk.run_events(events, range(1, len(codes) + 1)), walk.closed


class _Replay:
    def __init__(
        self,
        nodes: NodeTable,
        account: StepAccount,
        keep_slices: bool,
        ways: Mapping[int, Way] | None = None,
    ) -> None:
        self.nodes = nodes.in_order
        self.account = account
        self.keep_slices = keep_slices
        self.stack: list[tuple[int, int, bool, _Owner]] = []  # node, start, is it a phase, who runs in it
        # how each node was reached in the forward pass of this step, for its backward time
        self.way: dict[int, Way] = dict(ways or {})
        self.closed: list[tuple[tuple[int, str], int, int]] | None = None  # calls one by one, if wanted

    def run_events(self, events: Sequence[int], times: Sequence[int] | None) -> StepAccount:
        """Walk over all events, then close what is still open. This loop runs after every step: lean."""
        spent: dict[_Owner, int] = {}
        slices = self.account.slices if self.keep_slices else None
        owner, last_ns = _NOBODY, self.account.start_ns
        shift, mask = NODE_SHIFT, ACTION_MASK
        for index in range(0, len(events), WIDTH):
            code = events[index]
            time_ns = events[index + 1] if times is None else times[index // WIDTH]
            if time_ns > last_ns:
                spent[owner] = spent.get(owner, 0) + time_ns - last_ns
                if slices is not None:
                    slices.append(Slice(last_ns, time_ns, *owner))
                last_ns = time_ns
            action = code & mask
            if action == ENTER:
                owner = self._enter_node(code >> shift, time_ns)
            elif action == EXIT:
                owner = self._exit_node(code >> shift, time_ns)
            else:
                owner = self._mark_node(code >> shift)
        end_ns = self.account.end_ns
        if end_ns > last_ns:
            spent[owner] = spent.get(owner, 0) + end_ns - last_ns
            if slices is not None:
                slices.append(Slice(last_ns, end_ns, *owner))
        while self.stack:
            number = self.stack[-1][0]
            self.account.problems.append(f"{self.nodes[number].path} began and did not end")
            self._exit_node(number, end_ns)
        self._share_time(spent)
        self.account.ways = self.way
        return self.account

    def _enter_node(self, number: int, time_ns: int) -> _Owner:
        node = self.nodes[number]
        if node.kind == "phase":
            owner: _Owner = (node.path, node.path, (), None)
        else:
            _, _, in_phase, (phase, _, above, stage) = self.stack[-1] if self.stack else _OUTERMOST
            if in_phase:  # a phase may be marked with the node whose backward runs; that is no parent
                above, stage = (), None
            if node.kind == "part" and phase not in BESIDE:
                phase, above, stage = "other", (), None
            ancestors = (*above, number)
            stage = node.stage_within(stage)
            if phase == "backward":
                owner = (phase, RECOMPUTE, ancestors, stage)
            else:
                owner = (phase, phase, ancestors, stage)
                self.way[number] = (ancestors, stage)
        self.stack.append((number, time_ns, node.kind == "phase", owner))
        return owner

    def _exit_node(self, number: int, time_ns: int) -> _Owner:
        stack, account = self.stack, self.account
        if not stack or (stack[-1][0] != number and all(frame[0] != number for frame in stack)):
            account.problems.append(f"{self.nodes[number].path} ended and had not begun")
            return stack[-1][3] if stack else _NOBODY
        while True:  # an exception may have skipped inner exits
            closed, start_ns, is_phase, (_, direction, ancestors, _) = stack.pop()
            if not is_phase:
                key = (closed, direction)
                account.calls[key] += 1
                if closed not in ancestors[:-1]:  # recursion counts once
                    account.total_ns[key] += time_ns - start_ns
                    if self.closed is not None:
                        self.closed.append((key, start_ns, time_ns))
            if closed == number:
                return stack[-1][3] if stack else _NOBODY

    def _mark_node(self, number: int) -> _Owner:
        """From here on the backward pass belongs to this node."""
        if not self.stack or self.stack[-1][3][0] != "backward" or not self.stack[-1][2]:
            return self.stack[-1][3] if self.stack else _NOBODY
        ancestors, stage = self.way.get(number, ((number,), self.nodes[number].stage))
        owner: _Owner = ("backward", BACKWARD, ancestors, stage)
        frame = self.stack[-1]
        self.stack[-1] = (frame[0], frame[1], True, owner)  # a module that recomputes gives it back
        return owner

    def _share_time(self, spent: dict[_Owner, int]) -> None:
        """Phases, self times, stages and backward totals from the time of every owner."""
        account = self.account
        for (phase, direction, ancestors, stage), duration in spent.items():
            account.phases[phase] += duration
            if not ancestors:
                account.outside[phase] += duration
                continue
            account.self_ns[ancestors[-1], direction] += duration
            account.stages[stage or "", direction] += duration
            if direction == BACKWARD:
                for ancestor in set(ancestors):
                    account.total_ns[ancestor, BACKWARD] += duration
        for (number, direction), calls in list(account.calls.items()):
            if direction != RECOMPUTE and (number, BACKWARD) in account.total_ns:
                account.calls[number, BACKWARD] = calls
