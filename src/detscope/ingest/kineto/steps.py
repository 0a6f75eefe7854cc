"""Steps of a trace: its own marks, else what repeats once per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detscope.ingest.kineto.columns import Columns
from detscope.ingest.kineto.names import (
    LOADER_MARK,
    OPTIMIZER_MARK,
    OPTIMIZER_STEP,
    OWN_STEP,
    STEP_MARK,
    stage_name,
)
from detscope.ingest.kineto.nesting import NOBODY, Nest, Numbers
from detscope.ingest.kineto.scene import Scene


@dataclass(frozen=True)
class Steps:
    """Steps in order of time; they do not overlap."""

    numbers: Numbers
    starts_ns: Numbers
    ends_ns: Numbers
    names: list[str]
    made_of: str  # what marked them; empty where there are none

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, times_ns: Numbers) -> Numbers:
        """The index of the step in which each time lies."""
        if not len(self):
            return np.full(len(times_ns), NOBODY, np.int64)
        index = np.searchsorted(self.starts_ns, times_ns, side="right") - 1
        inside = (index >= 0) & (times_ns < self.ends_ns[np.maximum(index, 0)])
        return np.where(inside, index, NOBODY)


def main_thread(scene: Scene) -> int:
    """The thread that runs the loop: it has the steps, else the optimizer, else most launches or work."""
    for pattern in (STEP_MARK, OPTIMIZER_MARK, LOADER_MARK):
        found = scene.annotations.thread[scene.matching(scene.annotations, pattern)]
        if len(found):
            return _most_frequent(found)
    for columns in (scene.runtime, scene.operators, scene.annotations):
        if len(columns):
            return _most_frequent(columns.thread)
    return 0


def _most_frequent(values: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
    kinds, counts = np.unique(values, return_counts=True)
    return int(kinds[np.argmax(counts)])


def find_steps(scene: Scene, thread: int) -> Steps:
    """Steps by profiler marks, else by the optimizer, the loader, or what encloses the stages."""
    own = scene.own.get("own step")
    if own is not None and len(own):
        return _marked(scene, own, OWN_STEP, "steps of a detscope trace")
    marks = scene.annotations.take(scene.matching(scene.annotations, STEP_MARK))
    if len(marks):
        return _marked(scene, marks, STEP_MARK, "ProfilerStep marks")
    annotations = scene.annotations.take(scene.annotations.thread == thread)
    optimizer = annotations.take(scene.matching(annotations, OPTIMIZER_STEP))
    loader = annotations.take(scene.matching(annotations, LOADER_MARK))
    if len(optimizer) and not len(optimizer) > len(loader) > 0:
        return _until(np.sort(optimizer.end_ns), _first_start(scene, thread), "ends of the optimizer's step")
    if len(loader) > 1:
        starts = np.sort(loader.start_ns)
        ends = np.concatenate([starts[1:], [max(_last_end(scene, thread), starts[-1] + 1)]])
        return _numbered(starts, ends, "the loader's batches")
    return _around_stages(scene, annotations)


def _marked(scene: Scene, marks: Columns, pattern: object, made_of: str) -> Steps:
    order = np.argsort(marks.start_ns, kind="stable")
    starts, ends = marks.start_ns[order], marks.end_ns[order]
    names = [scene.names[code] for code in marks.name[order].tolist()]
    # two marks may meet or overlap by a rounding error; a moment belongs to one step
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    found = [getattr(pattern, "search")(name) for name in names]  # noqa: B009
    numbers = [int(match.group(1)[:18]) if match else index for index, match in enumerate(found)]
    return Steps(np.array(numbers, np.int64), starts, ends, names, made_of)


def _until(ends: Numbers, first: int, made_of: str) -> Steps:
    starts = np.concatenate([[min(first, int(ends[0]))], ends[:-1]])
    return _numbered(starts, ends, made_of)


def _numbered(starts: Numbers, ends: Numbers, made_of: str) -> Steps:
    names = [f"step {number}" for number in range(len(starts))]
    return Steps(np.arange(len(starts)), starts, ends, names, made_of)


def _around_stages(scene: Scene, annotations: Columns) -> Steps:
    """Inference: the outermost annotation around a detector's stages is one pass."""
    stages = scene.flags(annotations, stage_name)
    if stages.any():
        nest = Nest(scene.axis, annotations.thread, annotations.start_ns, annotations.wall_ns)
        parents = nest.parents()
        outer = int(np.flatnonzero(stages)[np.argmin(annotations.start_ns[stages])])
        while parents[outer] != NOBODY:
            outer = int(parents[outer])
        if not stages[outer]:
            same = annotations.take((annotations.name == annotations.name[outer]) & (nest.depth == 0))
            order = np.argsort(same.start_ns)
            name = scene.names[int(annotations.name[outer])]
            return _numbered(same.start_ns[order], same.end_ns[order], f"annotation {name!r}")
    nothing = np.empty(0, np.int64)
    return Steps(nothing, nothing, nothing, [], "")


def _first_start(scene: Scene, thread: int) -> int:
    starts = [
        int(columns.start_ns[columns.thread == thread].min(initial=np.iinfo(np.int64).max))
        for columns in (scene.annotations, scene.operators)
    ]
    return min(starts)


def _last_end(scene: Scene, thread: int) -> int:
    return max(
        int(columns.end_ns[columns.thread == thread].max(initial=np.iinfo(np.int64).min))
        for columns in (scene.annotations, scene.operators, scene.runtime)
    )
