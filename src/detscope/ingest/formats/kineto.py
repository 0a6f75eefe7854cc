"""Kineto / Chrome traces: what torch.profiler and detscope write, old and new, whole or damaged."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.kineto.attribution import TraceAttribution, attribute_events
from detscope.ingest.kineto.columns import EventCollector
from detscope.ingest.kineto.events import CounterEvent, decode_counters, decode_events
from detscope.ingest.kineto.metadata import (
    find_home_places,
    find_private_keys,
    find_suspicious_keys,
    read_metadata,
    select_facts,
)
from detscope.ingest.kineto.naming import DEVICE_ROLES
from detscope.ingest.kineto.spans import make_node_frame, make_span_frame, make_step_frame
from detscope.ingest.kineto.stream import TraceText, has_events, read_batches
from detscope.ingest.kineto.tables import (
    make_device_frame,
    make_host_frames,
    make_operator_frame,
    write_counters,
    write_memory,
)
from detscope.ingest.kineto.trace import sort_events
from detscope.ingest.sink import Format, Sink
from detscope.limits import LIMITS, raise_hint, read_limit

_OBJECT = re.compile(rb"^\s*+\{\s*+[\"}]")
_LIST = re.compile(rb"^\s*\[\s*(\{|\])")
_EVENT_KEYS = re.compile(rb'"(traceEvents|ph|schemaVersion|deviceProperties|distributedInfo)"\s*:')
_HINT = "record it again with torch.profiler's export_chrome_trace, or copy it again"


def recognize_head(head: bytes, path: Path) -> bool:
    """JSON that holds events, as a list or as an object; also where it is cut or damaged further on."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    if _LIST.match(head):
        return b'"ph"' in head or b'"ts"' in head or head.strip() == b"[]"
    if _EVENT_KEYS.search(head):
        return head.lstrip().startswith(b"[") or _OBJECT.match(head) is not None
    return _OBJECT.match(head) is not None and has_events(path)


def read_trace(path: Path, sink: Sink) -> None:
    """Read a trace into the sink's tables."""
    text, collector = TraceText(), EventCollector(sink.add_count)
    suspects: set[str] = set()
    counters: list[CounterEvent] = []
    most, limit_name = RecordedFile(path).find_event_limit()
    for batch in read_batches(path, text):
        collector.add_batch(decode_events(batch, text, sink.add_count))
        if not collector.batch_is_plain:
            suspects |= find_suspicious_keys(batch)
        if collector.batch_has_counters:
            counters += decode_counters(batch)
        if collector.kept + len(counters) > most:
            text.stopped = limit_name
            break
    metadata = read_metadata(text, sink.add_count)
    facts = select_facts(metadata)
    keys = [*find_private_keys(metadata), *find_home_places(collector.names, collector.stacks)]
    keys += sorted(suspects - set(keys))
    if keys:
        shown = ", ".join(key[:60] for key in keys[:12]) + (", ..." if len(keys) > 12 else "")
        sink.add_note(
            f"the file holds what may be private (keys: {shown}); none of it is in the run, "
            "but think before passing the file on"
        )
        sink.info["private_keys"] = [key[:60] for key in keys[:100]]
    _note_damage(sink, text, collector.events)
    sink.info |= {"events": collector.events, **facts}
    sink.rank = facts.get("rank", sink.rank)
    trace = sort_events(collector)
    roles = (trace.device, trace.operators, trace.runtime, trace.annotations, *trace.own.values())
    if not counters and not any(len(columns) for columns in roles):
        dropped = ", ".join(f"{n} {what}" for what, n in sink.counts.items())
        raise InputError(f"{path}: no usable event in it" + (f" ({dropped})" if dropped else ""), _HINT)
    base = facts.get("baseTimeNanoseconds")
    offset = base if isinstance(base, int) and 0 < base < 1 << 61 else 0
    found = attribute_events(trace, offset)
    sink.add_rows("device_events", make_device_frame(found))
    for frame in make_host_frames(found):
        sink.add_rows("host_events", frame)
    sink.add_rows("steps", make_step_frame(found))
    sink.add_rows("spans", make_span_frame(found))
    sink.add_rows("nodes", make_node_frame(found))
    sink.add_rows("ops", make_operator_frame(found))
    write_counters(sink, counters)
    write_memory(sink, trace, offset)
    _note_missing(sink, found, bool(counters))


def _note_missing(sink: Sink, found: TraceAttribution, has_counters: bool) -> None:
    """Counts, and what this file cannot tell."""
    trace, steps, stages = found.trace, found.steps, found.stages
    work = trace.device.get_extra("kind") != DEVICE_ROLES.index("sync")
    unlinked = int((work & (found.launch_call < 0)).sum())
    sink.add_count("device events without a launch record", unlinked)
    lost = work & (found.launch_call >= 0) & (found.launch_operator < 0)
    sink.add_count("device events launched outside of operators", int(lost.sum()))
    outside = steps.find_index(found.launch_moments) < 0
    sink.add_count("device events outside of steps", int(outside.sum()) if len(steps) else 0)
    by_time = stages.path[np.argsort(stages.intervals.start_ns, kind="stable")].tolist()
    sink.info |= {
        "steps": len(steps),
        "steps_by": steps.made_of,
        "modules_by": found.modules.made_of,
        "stages": [stages.paths[code] for code in dict.fromkeys(by_time)],
        "kernels_unlinked": unlinked,
        "backward_attributed": None,
    }
    # the share of the autograd engine's time that belongs to modules; None where there is neither
    top = found.is_top_backward
    walls = trace.operators.wall_ns[top]
    if found.modules.made_of and not found.has_own_backward and walls.sum():
        share = walls[found.module[top] >= 0].sum() / walls.sum()
        sink.info["backward_attributed"] = float(share)
    if steps.made_of and not steps.made_of.startswith(("ProfilerStep", "steps of")):
        sink.add_note(f"no step marks: steps are made from {steps.made_of}")
    if not len(steps):
        sink.cannot_tell("step times: the file has no step marks, no optimizer and no loader")
    if has_counters and not len(trace.device):
        sink.cannot_tell("how busy the device was: the file has counters of kernels, but no kernel times")
    if not found.modules.made_of:
        sink.cannot_tell("modules: the file names none (record with with_stack=True or with_modules=True)")


def _note_damage(sink: Sink, text: TraceText, events: int) -> None:
    sink.add_count("unreadable bytes skipped", text.skipped_bytes)
    if text.cut:
        sink.add_note("the file ends before its events do: what was read until there is shown")
    if text.stopped:
        reason = f"limit {text.stopped} of {read_limit(text.stopped):,} {LIMITS[text.stopped].unit}"
        sink.add_note(
            f"partial: the first {events:,} events alone were read ({reason}: {raise_hint(text.stopped)})"
        )
    if text.cut or text.stopped:
        sink.info["cut"] = True


PART = Format("Kineto / Chrome trace", recognize_head, read_trace, order=50)
