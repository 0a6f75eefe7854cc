"""Processor time of a step by phase."""

from __future__ import annotations

from detscope.record.steps.events import BATCH_ARRIVED, STEP_BEGINS, STEP_ENDS, EventBuffer
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.rows import make_processor_rows, sum_processor_time


def test_processor_time_of_the_phases_adds_up_to_that_of_the_step():
    nodes = NodeTable()
    forward, backward = (nodes.phase_node(name).number * 4 for name in ("forward", "backward"))
    marks = [STEP_BEGINS, 100, BATCH_ARRIVED, 130, forward, 132, forward + 1, 180]
    marks += [backward, 181, backward + 1, 281, STEP_ENDS, 290]
    spent = sum_processor_time(marks, nodes)
    assert spent == {"data": 30, "other": 12, "forward": 48, "backward": 100, "step": 190}
    assert make_processor_rows(7, marks, nodes)[0] == (7, "step", "processor_ns data", 30.0, "ns")


def test_marks_of_a_step_that_was_left_are_forgotten():
    nodes = NodeTable()
    forward = nodes.phase_node("forward").number * 4
    marks = [forward, 5, STEP_BEGINS, 10, forward, 12, STEP_BEGINS, 50, BATCH_ARRIVED, 60, STEP_ENDS, 70]
    assert sum_processor_time(marks, nodes) == {"data": 10, "other": 10, "step": 20}
    assert sum_processor_time(marks[:-2], nodes) == {}


def test_a_buffer_hands_over_the_marks_of_one_step():
    buffer = EventBuffer()
    buffer.mark_processor(STEP_BEGINS)
    buffer.enter_node(2)
    buffer.exit_node(2)
    marks = buffer.mark_processor(STEP_ENDS)
    assert marks[::2] == [STEP_BEGINS, 8, 9, STEP_ENDS]
    assert buffer.mark_processor(STEP_BEGINS)[-2] == STEP_BEGINS
    assert len(buffer.processor) == 2
