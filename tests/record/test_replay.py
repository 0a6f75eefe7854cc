"""The account of a step, from events with known answers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.replay import replay_events


class Script:
    """Writes events as a recording would, with a clock of its own."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.events: list[int] = []
        self.now = 0

    def at(self, time: int, what: str, kind: str, path: str, stage: str | None = None) -> None:
        code = {"enter": 0, "exit": 1, "mark": 2}[what]
        number = self.nodes.add_node(kind, path, stage=stage).number
        self.events += [number * 4 + code, time, -1]

    def account(self, end: int, keep_slices: bool = False):
        return replay_events(self.events, self.nodes, 0, end, keep_slices)

    def number(self, path: str) -> int:
        return self.nodes.add_node("module", path).number


def one_step() -> Script:
    script = Script()
    script.at(0, "enter", "phase", "data")
    script.at(10, "exit", "phase", "data")
    script.at(12, "enter", "phase", "forward")
    script.at(12, "enter", "module", "")
    script.at(20, "enter", "module", "backbone", stage="backbone")
    script.at(50, "exit", "module", "backbone")
    script.at(60, "enter", "module", "head", stage="head")
    script.at(65, "enter", "module", "head.conv")
    script.at(75, "exit", "module", "head.conv")
    script.at(80, "exit", "module", "head")
    script.at(82, "exit", "module", "")
    script.at(82, "exit", "phase", "forward")
    script.at(90, "enter", "phase", "backward")
    script.at(92, "mark", "module", "head")
    script.at(95, "mark", "module", "head.conv")
    script.at(115, "mark", "module", "backbone")
    script.at(150, "exit", "phase", "backward")
    script.at(151, "enter", "phase", "optimizer")
    script.at(160, "exit", "phase", "optimizer")
    return script


def test_phases_add_up_to_the_step_and_other_is_shown():
    account = one_step().account(end=165)
    assert dict(account.phases) == {"data": 10, "forward": 70, "backward": 60, "optimizer": 9, "other": 16}
    assert sum(account.phases.values()) == account.wall_ns == 165


def test_forward_self_times_add_up_to_the_forward_phase():
    script = one_step()
    account = script.account(end=165)
    own = {
        script.nodes[n].path: ns for (n, direction), ns in account.self_ns.items() if direction == "forward"
    }
    assert own == {"": 20, "backbone": 30, "head": 10, "head.conv": 10}
    assert account.total_ns[script.number("head"), "forward"] == 20


def test_backward_belongs_to_the_module_marked_last_and_what_precedes_the_first_mark_to_nobody():
    script = one_step()
    account = script.account(end=165)
    own = {script.nodes[n].path: ns for (n, d), ns in account.self_ns.items() if d == "backward"}
    assert own == {"head": 3, "head.conv": 20, "backbone": 35}
    assert account.outside["backward"] == 2
    assert account.total_ns[script.number("head"), "backward"] == 23
    assert account.total_ns[script.number(""), "backward"] == 58


def test_stages_hold_the_time_of_everything_below_them_that_has_no_stage_of_its_own():
    account = one_step().account(end=165)
    assert account.stages["head", "forward"] == 20
    assert account.stages["head", "backward"] == 23
    assert account.stages["", "forward"] == 20  # the root's own time


def test_a_module_that_runs_again_inside_backward_is_recompute_and_not_forward():
    script = Script()
    script.at(0, "enter", "phase", "forward")
    script.at(0, "enter", "module", "block")
    script.at(10, "exit", "module", "block")
    script.at(10, "exit", "phase", "forward")
    script.at(10, "enter", "phase", "backward")
    script.at(12, "enter", "module", "block")
    script.at(20, "exit", "module", "block")
    script.at(20, "mark", "module", "block")
    script.at(30, "exit", "phase", "backward")
    account = script.account(end=30)
    block = script.number("block")
    assert account.self_ns[block, "forward"] == 10
    assert account.self_ns[block, "recompute"] == 8
    assert account.self_ns[block, "backward"] == 10
    assert account.phases["backward"] == 20


def test_a_module_inside_itself_counts_its_total_once():
    script = Script()
    script.at(0, "enter", "module", "tree")
    script.at(4, "enter", "module", "tree")
    script.at(8, "exit", "module", "tree")
    script.at(10, "exit", "module", "tree")
    account = script.account(end=10)
    tree = script.number("tree")
    assert account.total_ns[tree, "other"] == 10
    assert account.self_ns[tree, "other"] == 10
    assert account.calls[tree, "other"] == 2


def test_exits_skipped_by_an_exception_are_closed_and_said():
    script = Script()
    script.at(0, "enter", "phase", "forward")
    script.at(1, "enter", "module", "a")
    script.at(2, "enter", "module", "a.b")
    script.at(5, "exit", "module", "a")
    account = script.account(end=9)
    assert account.self_ns[script.number("a.b"), "forward"] == 3
    assert account.problems == ["forward began and did not end"]


def test_device_times_replace_host_times_event_by_event():
    script = one_step()
    doubled = [2 * script.events[index + 1] for index in range(0, len(script.events), 3)]
    account = replay_events(script.events, script.nodes, 0, 330, times=doubled)
    assert account.phases["forward"] == 140


@st.composite
def nested_steps(draw):
    """A random, well-formed step: phases with modules inside, marks in backward."""
    script = Script()
    time = 0
    names = ["a", "a.b", "a.b.c", "d", "e"]

    def tick() -> int:
        nonlocal time
        time += draw(st.integers(0, 50))
        return time

    def modules(depth: int) -> None:
        for _ in range(draw(st.integers(0, 2 if depth else 3))):
            name = draw(st.sampled_from(names))
            script.at(tick(), "enter", "module", name)
            if depth < 3:
                modules(depth + 1)
            script.at(tick(), "exit", "module", name)

    for phase in draw(st.lists(st.sampled_from(["data", "forward", "backward", "optimizer"]), max_size=5)):
        script.at(tick(), "enter", "phase", phase)
        if phase == "backward":
            for name in draw(st.lists(st.sampled_from(names), max_size=4)):
                script.at(tick(), "mark", "module", name)
        if draw(st.booleans()):
            modules(0)
        script.at(tick(), "exit", "phase", phase)
    return script, tick()


@settings(max_examples=200, deadline=None)
@given(nested_steps())
def test_whatever_happens_slices_tile_the_step_and_nothing_is_counted_twice(step):
    script, end = step
    account = script.account(end, keep_slices=True)
    assert sum(account.phases.values()) == end
    assert sum(account.self_ns.values()) + sum(account.outside.values()) == end
    assert sum(account.stages.values()) == sum(account.self_ns.values())
    borders = [(piece.start_ns, piece.end_ns) for piece in account.slices]
    assert all(a[1] == b[0] for a, b in pairwise(borders))
    for (number, direction), own in account.self_ns.items():
        assert own <= account.total_ns.get((number, direction), own)


def test_a_stage_with_a_leading_dot_is_part_of_whichever_stage_is_running():
    script = Script()
    for start, outer in ((0, "rpn"), (20, "roi")):
        script.at(start, "enter", "module", outer, stage=outer)
        script.at(start + 5, "enter", "function", "nms()", stage=".nms")
        script.at(start + 8, "exit", "function", "nms()")
        script.at(start + 10, "exit", "module", outer)
    account = script.account(end=30)
    assert account.stages["rpn.nms", "other"] == account.stages["roi.nms", "other"] == 3
    assert account.stages["rpn", "other"] == 7
