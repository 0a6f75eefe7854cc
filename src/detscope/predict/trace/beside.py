"""Operators that are no layers: views, and what detectors do with anchors, boxes and indices.

Each takes a few microseconds, most of them the call itself, and a detector's step has hundreds. They are
counted at the two traced batch sizes, which tells how many there are in every step and how many per image.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from detscope.predict.layers.graph import Beside
from detscope.predict.layers.times import NMS, SMALL, VIEW
from detscope.predict.trace.step import TracedStep
from detscope.predict.trace.graph import forward_calls, tensors_of
from detscope.predict.trace.log import BACKWARD, OperatorCall, Seen

_OF_LAYERS = frozenset({"aten.empty", "aten.detach", "aten.t", "aten.alias", "aten.lift_fresh"})
_READS_ONE_NUMBER = "aten._local_scalar_dense"
# of the backward pass only what belongs to views: all else was measured with its layer
_VIEWS_BACKWARD = frozenset({"aten.view", "aten.permute", "aten.select", "aten.unsqueeze", "aten.transpose"})
_COPIES_BACKWARD = frozenset({"aten.select_backward", "aten.slice_backward", "aten.stack"})

Key = tuple[str, str]  # kind and stage


def beside_of(low: TracedStep, high: TracedStep) -> tuple[Beside, ...]:
    """What two steps run beside their layers, as a line over the batch size."""
    one, other = _counted(low), _counted(high)
    found = []
    for kind, stage in dict.fromkeys([*one, *other]):
        first, last = one.get((kind, stage), (0, 0)), other.get((kind, stage), (0, 0))
        lines = [_line(low.batch, start, high.batch, end) for start, end in zip(first, last, strict=True)]
        found.append(Beside(kind, stage, lines[0], lines[1]))
    return tuple(found)


def _line(low: int, start: float, high: int, end: float) -> tuple[float, float]:
    """In every step, and for each image; what gets less with more images is taken as constant."""
    per_image = max(0.0, (end - start) / (high - low))
    return max(0.0, start - low * per_image), per_image


def _counted(step: TracedStep) -> dict[Key, tuple[int, int]]:
    """Calls and elements by kind and stage."""
    found: dict[Key, tuple[int, int]] = {}
    for stage, kind, elements in _beside(step):
        calls, size = found.get((kind, stage), (0, 0))
        found[kind, stage] = (calls + 1, size + elements)
    return found


def _beside(step: TracedStep) -> Iterator[tuple[str, str, int]]:
    for call, operation in forward_calls(step):
        if operation is None and not _part_of_a_layer(call):
            yield call.stage, *_kind_and_size(call)
    for call in step.log.calls:
        if call.phase == BACKWARD and call.name in _VIEWS_BACKWARD:
            yield call.stage, VIEW, 1
        elif call.phase == BACKWARD and call.name in _COPIES_BACKWARD:
            yield call.stage, SMALL, _elements(call.outputs)


def _part_of_a_layer(call: OperatorCall) -> bool:
    """Batch norm counts its batches; others make room or take notes."""
    counts = call.name == "aten.add_" and len(call.outputs) == 1 and not call.outputs[0].shape
    return counts or call.name in _OF_LAYERS


def _kind_and_size(call: OperatorCall) -> tuple[str, int]:
    given = tensors_of(call.arguments)
    if call.name == NMS:
        return NMS, given[1].shape[0]
    same = bool(call.outputs) and call.outputs[0].block in (one.block for one in given)
    if (same and not call.name.endswith("_")) or call.name == _READS_ONE_NUMBER:
        return VIEW, 1
    return SMALL, _elements(given) + _elements(call.outputs)


def _elements(tensors: list[Seen] | tuple[Seen, ...]) -> int:
    return sum(prod(one.shape) for one in tensors)
