"""Which borders get a mark in a step, so that marks stay a small share of it. Pure.

Phases and stages have theirs in every recorded step: a stage where it begins, not in modules inside of it
that have its name too, because whoever holds them need not call them. Modules take turns, in the order in
which they run: as many as the share allows. One that takes the device less than its mark takes the host is
not marked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from detscope.record.steps.events import ENTER, EXIT, MARK, decode_events, encode_event
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.replay import Way

Place = tuple[str | int, ...]
_NOWHERE: Place = ("",)
LARGEST_SHARE = 0.03  # of a step's wall time
_LEAST_MARKS = 8  # of modules, whatever the step takes
_RECENT_STEPS = 5


class MarkPlan:
    """Asked at every border (`wanted`, `wants_backward`), made anew between steps."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self.wanted: set[int] = set()  # codes of begins; borders of phases are always marked
        self._next = 0  # place of the first module of the next turn
        self._order: list[int] = []  # modules that take turns, as they run
        self._marks_of: Counter[int] = Counter()  # that a node's borders would take in a step
        self.ways: dict[int, Way] = {}  # how a node was reached last
        self._walls_ns: list[int] = []
        self._always: list[float] = []  # marks of recent steps beside those of modules in their turn
        self._turn_marks = 0
        # by node: its stage, and those around it whose turn it is; a change of these is marked backward
        self._places: dict[int, Place] = {}
        self._place: Place | None = None
        self._places_of: dict[frozenset[int], dict[int, Place]] = {}  # by whose turn it is
        self._callers: set[int] = set()  # nodes that call others
        self.measured: set[int] = set()
        self.below: dict[int, int] = {}  # modules that took less than a mark, and how long

    # ---- at borders

    def wants_backward(self, number: int) -> bool:
        """Whether the backward pass is marked where it comes to this node."""
        place = self._places.get(number, _NOWHERE)
        if place == self._place:
            return False
        self._place = place
        return True

    # ---- between steps

    def learn_step(self, events: Sequence[int], wall_ns: int) -> None:
        """What a step with modules looks like."""
        self._walls_ns = [*self._walls_ns[1 - _RECENT_STEPS :], wall_ns]
        counted: Counter[int] = Counter()
        seen: dict[int, None] = {}
        for number, action, _, _ in decode_events(events):
            if self._nodes[number].kind != "phase" and action in (ENTER, EXIT, MARK):
                counted[number] += 1
                seen.setdefault(number)
        known = set(self._order)
        self._order += [one for one in seen if one not in known and not self._begins_stage(one)]
        if counted:
            self._marks_of = counted

    def learn_ways(self, ways: Mapping[int, Way]) -> None:
        """By which nodes each one was reached, and in which stage."""
        if any(self.ways.get(number) != way for number, way in ways.items()):
            self.ways.update(ways)
            self._callers = {number for ancestors, _ in self.ways.values() for number in ancestors[:-1]}
            self._places_of.clear()

    def learn_times(self, call_ns: Mapping[int, int], cost_ns: int) -> None:
        """What calls of marked modules took: one below its mark that calls no other is left out."""
        for number, taken_ns in call_ns.items():
            self.measured.add(number)
            if number not in self._callers and taken_ns < cost_ns and not self._begins_stage(number):
                self.below[number] = taken_ns

    def plan_step(self, cost_ns: int, modules: bool, turns: bool = True) -> frozenset[int]:
        """Choose whose turn it is in the coming step, if it counts; all nodes that get marks."""
        staged = [node.number for node in self._nodes if self._begins_stage(node.number)] if modules else []
        turn = frozenset(self._choose_turn(cost_ns, staged)) if modules and turns else frozenset()
        self._place, self._places = None, self._find_places(turn) if modules else {}
        marked = turn.union(staged)
        self.wanted.clear()
        self.wanted.update(encode_event(number, ENTER) for number in marked)
        return marked

    def _begins_stage(self, number: int) -> bool:
        """Whether what calls this node is in another stage than it."""
        if self._nodes[number].stage is None:
            return False
        ancestors, stage = self.ways.get(number, ((), None))
        caller = self.ways.get(ancestors[-2]) if len(ancestors) > 1 else None
        return caller is None or caller[1] != stage

    def _find_places(self, turn: frozenset[int]) -> dict[int, Place]:
        found = self._places_of.get(turn)
        if found is None:
            found = self._places_of[turn] = {
                number: (stage or "", *(one for one in ancestors if one in turn))
                for number, (ancestors, stage) in self.ways.items()
            }
        return found

    def _choose_turn(self, cost_ns: int, staged: Iterable[int]) -> Iterable[int]:
        if not self._order or not self._walls_ns:
            return []
        # before it was seen: of a stage its borders and about as many changes backward; phases
        always = max(self._always) if self._always else sum(self._marks_of[one] for one in staged) + 24
        left = max(_LEAST_MARKS, LARGEST_SHARE * median(self._walls_ns) / max(1, cost_ns) - always)
        chosen: list[int] = []
        begun, self._turn_marks = self._next, 0
        for place in range(len(self._order)):
            at = (begun + place) % len(self._order)
            number = self._order[at]
            if number in self.below:
                continue
            marks = max(2, self._marks_of[number])
            if self._turn_marks + marks > left and chosen:
                break
            chosen.append(number)
            self._turn_marks += marks
            self._next = (at + 1) % len(self._order)
        return chosen

    def learn_marks(self, count: int) -> None:
        """How many marks the step took: what its turn does not explain comes in every step."""
        self._always = [*self._always[1 - _RECENT_STEPS :], max(0.0, count - self._turn_marks)]

    def list_unmeasured(self) -> list[str]:
        """Paths of modules that ran and never had a time of the device's."""
        names = (self._nodes[number] for number in self._order if number not in self.measured)
        return [node.path or node.type_name for node in names]

    def list_below(self) -> list[str]:
        """Paths of modules that take less than a mark."""
        return [self._nodes[number].path or self._nodes[number].type_name for number in self.below]
