"""Events of a file, attributed: into the tables, with counts and what cannot be told."""

from __future__ import annotations

import numpy as np

from detscope.ingest.sink import Sink
from detscope.traces.attribution import TraceAttribution
from detscope.traces.tables import (
    make_device_frame,
    make_host_frames,
    make_node_frame,
    make_operator_frame,
    make_span_frame,
    make_step_frame,
)


def add_events(sink: Sink, found: TraceAttribution) -> None:
    """Rows of what the device and its host did; device events that are unlinked or in no step are counted."""
    sink.add_rows("device_events", make_device_frame(found))
    for frame in make_host_frames(found):
        sink.add_rows("host_events", frame)
    work, steps = found.trace.is_work, found.steps
    sink.add_count("device events without a launch record", found.unlinked)
    lost = work & (found.launch_call >= 0) & (found.launch_operator < 0)
    if len(found.trace.operators):
        sink.add_count("device events launched outside of operators", int(lost.sum()))
    outside = steps.find_index(found.launch_moments) < 0
    sink.add_count("device events outside of steps", int(outside.sum()) if len(steps) else 0)


def add_steps(sink: Sink, found: TraceAttribution) -> None:
    """Rows of steps, modules, stages and operators, which are those of one rank, and what made them."""
    sink.add_rows("steps", make_step_frame(found))
    sink.add_rows("spans", make_span_frame(found))
    sink.add_rows("nodes", make_node_frame(found))
    sink.add_rows("ops", make_operator_frame(found))
    steps, stages, modules = found.steps, found.stages, found.modules
    by_time = stages.path[np.argsort(stages.intervals.start_ns, kind="stable")].tolist()
    whole_ns, in_modules_ns = found.backward_times
    known = modules.made_of and not modules.has_backward and whole_ns
    sink.info |= {
        "steps": len(steps),
        "steps_by": steps.made_of,
        "modules_by": modules.made_of,
        "stages": [stages.paths[code] for code in dict.fromkeys(by_time)],
        "kernels_unlinked": found.unlinked,
        "backward_attributed": in_modules_ns / whole_ns if known else None,
    }
    if steps.made_of and not steps.made_of.startswith(("ProfilerStep", "steps of")):
        remark = f"; {steps.remark}" if steps.remark else ""
        sink.add_note(f"no step marks: steps are made from {steps.made_of}{remark}")
