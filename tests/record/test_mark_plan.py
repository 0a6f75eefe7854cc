"""Which borders get a mark: a small share of a step, every module in its turn."""

from __future__ import annotations

from detscope.record.device.mark_plan import LARGEST_SHARE, MarkPlan
from detscope.record.steps.nodes import NodeTable

MARK_NS = 4_000
STEP_NS = 30_000_000


def large_net(stages: int, blocks: int, leaves: int):
    """Nodes, the events of a training step and how each node is reached."""
    nodes, events, ways = NodeTable(), [], {}
    root = nodes.add_node("module", "").number
    order = []

    def call(number, above, stage, inner):
        events.extend((number * 4, 0, 0))
        ways[number] = ((*above, number), stage)
        order.append((number, stage))
        for one in inner:
            call(*one)
        events.extend((number * 4 + 1, 0, 0))

    tree = []
    for s in range(stages):
        stage = nodes.add_node("module", f"s{s}", stage=f"s{s}").number
        inner = []
        for b in range(blocks):
            block = nodes.add_node("module", f"s{s}.b{b}").number
            parts = [nodes.add_node("module", f"s{s}.b{b}.{i}").number for i in range(leaves)]
            path = (root, stage, block)
            inner.append((block, path[:2], f"s{s}", [(part, path, f"s{s}", []) for part in parts]))
        tree.append((stage, (root,), f"s{s}", inner))
    call(root, (), None, tree)
    backward = nodes.phase_node("backward").number
    events.extend((backward * 4, 0, 0))
    for number, _ in reversed(order):
        events.extend((number * 4 + 2, 0, 0))
    events.extend((backward * 4 + 1, 0, 0))
    return nodes, events, ways


def count_marks(plan, events, nodes):
    """Marks that a step takes: borders that are wanted, backward where it changes place, phases."""
    found = 0
    for code in events[::3]:
        number, action = code >> 2, code & 3
        if nodes[number].kind == "phase":
            found += 1
        elif action == 2:
            found += plan.wants_backward(number)
        else:
            found += number * 4 in plan.wanted
    return found


def test_a_thousand_modules_have_their_turn_in_twenty_steps_at_three_per_cent_of_a_step():
    nodes, events, ways = large_net(stages=10, blocks=10, leaves=9)
    assert len(ways) == 1011
    plan = MarkPlan(nodes)
    plan.learn_step(events, STEP_NS)
    plan.learn_ways(ways)
    had_turn, marks = set(), []
    for _ in range(20):
        had_turn |= plan.plan_step(MARK_NS, modules=True)
        marks.append(count_marks(plan, events, nodes))
    assert had_turn == set(ways)
    assert max(marks) * MARK_NS <= LARGEST_SHARE * STEP_NS, marks


def test_phases_and_stages_are_marked_in_every_step():
    nodes, events, ways = large_net(stages=10, blocks=10, leaves=9)
    plan = MarkPlan(nodes)
    plan.learn_step(events, STEP_NS)
    plan.learn_ways(ways)
    staged = {node.number for node in nodes if node.stage is not None}
    for _ in range(5):
        assert staged <= plan.plan_step(MARK_NS, modules=True)


def test_a_small_net_is_marked_whole_in_every_step():
    nodes, events, ways = large_net(stages=2, blocks=2, leaves=2)
    plan = MarkPlan(nodes)
    plan.learn_step(events, STEP_NS)
    plan.learn_ways(ways)
    assert plan.plan_step(MARK_NS, modules=True) == plan.plan_step(MARK_NS, modules=True) == set(ways)


def test_a_leaf_below_its_mark_is_named_and_not_marked_again_but_what_calls_it_is():
    nodes, events, ways = large_net(stages=2, blocks=2, leaves=2)
    plan = MarkPlan(nodes)
    plan.learn_step(events, STEP_NS)
    plan.learn_ways(ways)
    leaf, block = nodes.add_node("module", "s0.b0.1").number, nodes.add_node("module", "s0.b0").number
    plan.learn_times({leaf: MARK_NS - 1, block: MARK_NS - 1}, MARK_NS)
    marked = plan.plan_step(MARK_NS, modules=True)
    assert leaf not in marked
    assert block in marked
    assert plan.list_below() == ["s0.b0.1"]
    assert "s0.b1" in plan.list_unmeasured()


def test_backward_is_marked_where_it_enters_and_leaves_what_has_its_turn_and_where_the_stage_changes():
    nodes, events, ways = large_net(stages=2, blocks=2, leaves=2)
    plan = MarkPlan(nodes)
    plan.learn_ways(ways)
    plan.learn_step(events, STEP_NS)
    plan.below = {number: 0 for number in ways if nodes[number].path not in ("s0.b1.0", "s0", "s1")}
    plan.plan_step(MARK_NS, modules=True)
    number = {node.path: node.number for node in nodes if node.kind == "module"}
    wanted = [path for path in ("s1.b1.1", "s1.b0.0", "s1", "s0.b1.1", "s0.b1.0", "s0.b0.1", "s0.b0.0", "s0")
              if plan.wants_backward(number[path])]  # fmt: skip
    assert wanted == ["s1.b1.1", "s0.b1.1", "s0.b1.0", "s0.b0.1"]
