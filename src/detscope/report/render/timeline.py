"""A timeline as JSON for its script: columns of integers, packed; names and groups in tables."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import numpy as np

from detscope.analyze.memory.blocks import Longs
from detscope.analyze.timeline.figures import DrawnStep, MemoryCurve, TimelineLane
from detscope.report.model import Timeline


def timeline_json(block: Timeline) -> dict[str, object]:
    """What the page's script reads; `timeline.js: readLane` is the other side of it."""
    content = block.content
    words: dict[str, int] = {}
    names = [
        [name.text, name.kind, [[words.setdefault(word, len(words)), text] for word, text in name.about]]
        for name in content.names
    ]
    return {
        "names": names,
        "words": list(words),
        "groups": [[group, colour] for group, colour in zip(content.groups, block.colours, strict=True)],
        "categories": dict(block.categories),
        "steps": [_pack_step(step, block) for step in content.steps],
    }


def _pack_step(step: DrawnStep, block: Timeline) -> dict[str, object]:
    arrows = [[a.device_lane, a.done_ns, a.host_lane, a.returned_ns] for a in step.arrows]
    packed: dict[str, object] = {
        "step": step.step,
        "title": step.title,
        "remark": step.remark,
        "wall": step.wall_ns,
        "until": step.until_ns,
        "lanes": [_pack_lane(lane) for lane in step.lanes],
        "arrows": arrows,
    }
    if step.memory is not None:
        packed["memory"] = _pack_memory(step.memory, [*block.categories])
    elif step.memory_why:
        packed["noMemory"] = step.memory_why
    return packed


def _pack_lane(lane: TimelineLane) -> dict[str, object]:
    columns = (_zigzag(_differences(lane.starts)), lane.lengths, lane.names, lane.groups, lane.depths)
    packed: dict[str, object] = {"title": lane.title, "n": len(lane), "data": _pack_columns(columns)}
    if lane.left_out:
        packed["left"] = [lane.left_out, lane.left_out_ns]
    return packed


def _pack_memory(memory: MemoryCurve, order: list[str]) -> dict[str, object]:
    names = sorted(memory.bytes, key=lambda name: order.index(name) if name in order else len(order))
    moments = np.asarray(memory.moments, np.int64)
    levels = [_zigzag(_differences(np.asarray(memory.bytes[name], np.int64))) for name in names]
    return {
        "device": memory.device,
        "n": len(moments),
        "names": names,
        "data": _pack_columns([_zigzag(_differences(moments)), *levels]),
        "peak": [memory.peak_ns, memory.peak_bytes],
        "since": memory.since_recording,
    }


def _differences(values: Longs) -> Longs:
    return np.diff(values, prepend=0)


def _zigzag(values: Longs) -> Longs:
    """Signed to unsigned, small to small: 0, -1, 1, -2, ..."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


def _pack_columns(columns: Iterable[Longs]) -> str:
    """Seven bits a byte, the highest says that more come; then base64."""
    packed = bytearray()
    for column in columns:
        for value in column.tolist():
            while value > 127:
                packed.append(value & 127 | 128)
                value >>= 7
            packed.append(value)
    return base64.b64encode(bytes(packed)).decode("ascii")
