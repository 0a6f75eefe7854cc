"""A traced step in a loop that forgets gradients after forward: the last step's are still there in it."""

from __future__ import annotations

from dataclasses import replace

from detscope.predict.trace.step import TracedStep
from detscope.predict.trace.log import BACKWARD, Block, StepLog
from detscope.predict.trace.network import TracedNetwork


def keeping_gradients(traced: TracedNetwork) -> TracedNetwork:
    """As `detscope train` runs it: `zero_grad` comes between forward and backward."""
    one, other = traced.steps
    return replace(traced, steps=(_keeping(one), _keeping(other)))


def _keeping(step: TracedStep) -> TracedStep:
    log = step.log
    backward = next((place for place, call in enumerate(log.calls) if call.phase == BACKWARD), len(log.calls))
    earlier = [log.blocks[number] for number in sorted(step.gradients)]
    first = len(log.blocks)
    blocks = [*log.blocks, *(Block(one.size_bytes, "", one.stage, "gradients") for one in earlier)]
    numbers = range(first, len(blocks))
    events = [(0, number, True) for number in numbers]
    events += [event for event in log.events if event[0] < backward]
    events += [(backward, number, False) for number in numbers]
    events += [event for event in log.events if event[0] >= backward]
    return replace(step, log=StepLog(blocks, log.calls, events))
