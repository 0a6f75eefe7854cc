"""Steps whose events repeat are sums over a layout; the figures are those of the general replay."""

from __future__ import annotations

from time import perf_counter_ns

from hypothesis import given, settings
from hypothesis import strategies as st

from detscope.record.steps.layouts import KeptStep, RepeatedSteps, join_events, moments_of
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.replay import replay_events
from detscope.record.steps.rows import make_span_rows, make_step_rows
from detscope.record.steps.tables import OpenStep, StepTables
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter


def some_nodes() -> NodeTable:
    nodes = NodeTable()
    nodes.add_node("module", "", "Root")
    nodes.add_node("module", "backbone", "Body", "backbone")
    nodes.add_node("module", "backbone.conv", "Conv2d")
    nodes.add_node("module", "head", "Head", "head")
    nodes.add_node("function", "nms()", "function", ".nms")
    nodes.add_node("region", "mine", "region")
    return nodes


NODES = some_nodes()


def as_events(codes, gaps, start=1_000):
    time, events = start, []
    for code, gap in zip(codes, gaps, strict=True):
        time += gap
        events += [code, time, -1]
    return events


@st.composite
def sequences(draw, least_gap):
    """Any codes in any order, well-formed or not, and times for three steps."""
    codes = draw(st.lists(st.integers(0, 4 * len(NODES) - 1).filter(lambda code: code % 4 < 3), max_size=40))
    gap = st.integers(least_gap, 60)
    times = st.lists(gap, min_size=len(codes) + 1, max_size=len(codes) + 1)
    return codes, [draw(times) for _ in range(3)]


def calls_of(depth, draw_from):
    """A well-formed pass: modules inside modules."""
    inner = st.nothing() if depth == 0 else st.deferred(lambda: calls_of(depth - 1, draw_from))
    return st.tuples(draw_from, st.lists(inner, max_size=2) if depth else st.just([]))


@st.composite
def trainings(draw):
    """Data, forward with nested modules, backward with marks and recomputation, optimizer."""
    modules = st.sampled_from(range(6, len(NODES)))
    codes: list[int] = []

    def write(call):
        number, inner = call
        codes.append(number * 4)
        for one in inner:
            write(one)
        codes.append(number * 4 + 1)

    data, forward, backward, optimizer = (
        NODES.phase_node(p).number * 4 for p in ("data", "forward", "backward", "optimizer")
    )
    codes += [data, data + 1, forward]
    for call in draw(st.lists(calls_of(3, modules), max_size=4)):
        write(call)
    codes += [forward + 1, backward]
    for mark in draw(st.lists(modules, max_size=8)):
        codes.append(mark * 4 + 2)
        if draw(st.booleans()):
            write((draw(modules), []))
    codes += [backward + 1, optimizer, optimizer + 1]
    times = st.lists(st.integers(0, 60), min_size=len(codes) + 1, max_size=len(codes) + 1)
    return codes, [draw(times) for _ in range(3)]


def both_ways(codes, steps_gaps):
    """Rows of all steps by the general replay, and by a layout."""
    repeats = RepeatedSteps(NODES)
    general_steps, general_spans, events = [], [], []
    for index, gaps in enumerate(steps_gaps):
        events = as_events(codes, gaps[:-1])
        end = max([1_000, *events[1::3]]) + gaps[-1]
        account = replay_events(events, NODES, 1_000, end)
        general_steps += make_step_rows(index, 0, "recorded", account)
        general_spans += make_span_rows(index, NODES, account) if account.self_ns else []
        layout = repeats.find_layout(events) or repeats.find_layout(events)
        moments = moments_of(events, 1_000, end)
        assert join_events(layout, moments) == events
        repeats.keep_step(layout, KeptStep(index, 0, "recorded", moments))
    return general_steps, general_spans, repeats.take_frames()


def assert_the_same(codes, steps_gaps):
    general_steps, general_spans, (frames, odd) = both_ways(codes, steps_gaps)
    replayed = {step.index for _, step in odd}
    assert [row for table, frame in frames if table == "steps" for row in frame.iter_rows()] == [
        row for row in general_steps if row[0] not in replayed
    ]
    assert [row for table, frame in frames if table == "spans" for row in frame.iter_rows()] == [
        row for row in general_spans if row[0] not in replayed
    ]
    return replayed


@settings(max_examples=300, deadline=None)
@given(sequences(least_gap=-20))
def test_any_sequence_gives_the_rows_of_the_general_replay_even_where_the_clock_goes_back(found):
    assert_the_same(*found)


@settings(max_examples=300, deadline=None)
@given(trainings())
def test_training_steps_give_the_rows_of_the_general_replay(found):
    assert_the_same(*found)


@settings(max_examples=100, deadline=None)
@given(sequences(least_gap=1))
def test_where_every_interval_takes_time_no_step_has_to_be_replayed(found):
    assert not assert_the_same(*found)


def test_the_first_appearance_of_a_sequence_has_no_layout():
    repeats = RepeatedSteps(NODES)
    assert repeats.find_layout([24, 1, -1]) is None
    assert repeats.find_layout([28, 1, -1]) is None
    assert repeats.find_layout([24, 2, -1]) is not None


def test_of_many_sequences_the_ones_used_last_are_kept():
    repeats = RepeatedSteps(NODES)
    for number in range(100):
        for _ in range(2):
            repeats.find_layout([24, 1, -1] * (number + 1))
    assert len(repeats._layouts) == 32
    assert tuple([24] * 100) in repeats._layouts


def opened(index, codes, gap, mode="recorded"):
    events = as_events(codes, [gap] * len(codes), start=index * 1_000_000)
    step = OpenStep(index, 0, mode, index * 1_000_000 - 5, index * 1_000_000, 1, False, None)
    step.events, step.end_ns = events, (events[-2] if events else index * 1_000_000) + 3
    return step


def test_a_run_has_the_rows_of_all_steps_in_their_order_however_they_were_kept(tmp_path):
    forward, head = NODES.phase_node("forward").number * 4, 9 * 4
    plain = [forward, head, head + 1, forward + 1]
    other = [forward, head, head + 1, head, head + 1, forward + 1]
    kinds = [plain, other, plain, plain, other, [], plain, other]
    writer = RunWriter(tmp_path, "test", "model", {})
    tables = StepTables(writer, NODES, 0)
    expected_steps, expected_spans = [], []
    for index, codes in enumerate(kinds):
        step = opened(index, codes, gap=7 + index, mode="bare" if not codes else "recorded")
        tables.add_step(step)
        data = NODES.phase_node("data").number * 4
        events = [data, step.start_ns, -1, data + 1, step.waited_ns, -1, *step.events]
        account = replay_events(events, NODES, step.start_ns, step.end_ns)
        rows = make_step_rows(index, 0, step.mode, account)
        expected_steps += [rows[0], rows[1]] if not codes else rows
        expected_spans += make_span_rows(index, NODES, account) if codes else []
        if index == 4:
            tables.flush_rows()
    tables.close_tables([])
    writer.close_run("ok")
    run = load_run(writer.folder)
    assert run.table("steps").rows() == expected_steps
    assert run.table("spans").rows() == expected_spans


def test_a_step_in_which_a_node_took_no_time_is_replayed(tmp_path):
    forward, head = NODES.phase_node("forward").number * 4, 9 * 4
    backward = NODES.phase_node("backward").number * 4
    codes = [forward, head, head + 1, forward + 1, backward, head + 2, backward + 1]
    writer = RunWriter(tmp_path, "test", "model", {})
    tables = StepTables(writer, NODES, 0)
    expected = []
    for index, gap in enumerate((5, 5, 5, 5)):
        step = opened(index, codes, gap)
        if index == 2:  # the mark and the end of backward at the same moment
            step.events[-2] = step.events[-5]
        tables.add_step(step)
        account = replay_events(step.events, NODES, step.start_ns, step.end_ns)
        expected += make_span_rows(index, NODES, account)
    tables.close_tables([])
    writer.close_run("ok")
    found = load_run(writer.folder).table("spans")
    assert found.rows() == expected
    assert "backward" not in found.filter(step=2, kind="module")["direction"].to_list()


def test_a_clock_of_today_fits_the_arrays():
    now = perf_counter_ns()
    assert moments_of([24, now + 1, -1], now, now + 2).tolist() == [now, now + 1, now + 2]
