"""Kineto / Chrome traces: what torch.profiler and detscope write, old and new, whole or damaged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from detscope.errors import InputError
from detscope.ingest.files import most_events
from detscope.ingest.kineto.columns import Collector
from detscope.ingest.kineto.events import CounterEvent, decode, decode_counters
from detscope.ingest.kineto.metadata import (
    facts_of,
    metadata_of,
    places_with_home,
    private_keys,
    suspicious_keys,
)
from detscope.ingest.kineto.names import DEVICE_ROLES, scrubbed
from detscope.ingest.kineto.scene import Scene, sort_out
from detscope.ingest.kineto.spans import node_frame, span_frame, step_frame
from detscope.ingest.kineto.stream import Text, batches, has_events
from detscope.ingest.kineto.tables import (
    Picture,
    attribute,
    device_frame,
    host_frames,
    operators_frame,
)
from detscope.ingest.sink import Sink
from detscope.limits import LIMITS, limit, raise_hint

_OBJECT = re.compile(rb"^\s*+\{\s*+[\"}]")
_LIST = re.compile(rb"^\s*\[\s*(\{|\])")
_EVENT_KEYS = re.compile(rb'"(traceEvents|ph|schemaVersion|deviceProperties|distributedInfo)"\s*:')
_HINT = "record it again with torch.profiler's export_chrome_trace, or copy it again"


def sniff(head: bytes, path: Path) -> bool:
    """JSON that holds events, as a list or as an object; also where it is cut or damaged further on."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    if _LIST.match(head):
        return b'"ph"' in head or b'"ts"' in head or head.strip() == b"[]"
    if not _OBJECT.match(head):
        return head.lstrip().startswith(b"[") and _EVENT_KEYS.search(head) is not None
    return _EVENT_KEYS.search(head) is not None or has_events(path)


def read(path: Path, sink: Sink) -> None:
    """Read a trace into the sink's tables."""
    text, collector = Text(), Collector(sink.count)
    suspects: set[str] = set()
    counters: list[CounterEvent] = []
    most, limit_name = most_events(path)
    for batch in batches(path, text):
        collector.add(decode(batch, text, sink.count))
        if not collector.batch_is_plain:
            suspects |= suspicious_keys(batch)
        if collector.batch_has_counters:
            counters += decode_counters(batch)
        if collector.kept + len(counters) > most:
            text.stopped = limit_name
            break
    metadata = metadata_of(text, sink.count)
    facts = facts_of(metadata)
    homes = places_with_home(collector.names, collector.stacks)
    _tell_private(sink, [*private_keys(metadata), *homes], suspects)
    _tell_damage(sink, text)
    _tell_limit(sink, text, collector.events)
    sink.info |= {"events": collector.events, **facts}
    if "rank" in facts:
        sink.rank = facts["rank"]
    scene = sort_out(collector)
    usable = sum(len(c) for c in (scene.device, scene.operators, scene.runtime, scene.annotations))
    usable += len(counters) + sum(len(columns) for columns in scene.own.values())
    if not usable:
        dropped = ", ".join(f"{n} {what}" for what, n in sink.counts.items())
        raise InputError(
            f"{path}: no usable event in it" + (f" ({dropped})" if dropped else ""),
            _HINT,
        )
    base = facts.get("baseTimeNanoseconds")
    offset = base if isinstance(base, int) and 0 < base < 1 << 61 else 0
    picture = attribute(scene, offset)
    _write(sink, picture)
    _write_counters(sink, counters)
    _write_memory(sink, scene, offset)
    _tell(sink, picture, bool(counters))


def _write(sink: Sink, picture: Picture) -> None:
    sink.add("device_events", device_frame(picture))
    for frame in host_frames(picture):
        sink.add("host_events", frame)
    sink.add("steps", step_frame(picture))
    sink.add("spans", span_frame(picture))
    sink.add("nodes", node_frame(picture))
    sink.add("ops", operators_frame(picture))


def _tell(sink: Sink, picture: Picture, has_counters: bool) -> None:
    """Counts, and what this file cannot tell."""
    scene, steps = picture.scene, picture.steps
    work = scene.device.value("kind") != DEVICE_ROLES.index("sync")
    unlinked = work & (picture.launches.runtime < 0)
    sink.count("device events without a launch record", int(unlinked.sum()))
    lost = work & ~unlinked & (picture.launches.operator < 0)
    sink.count("device events launched outside of operators", int(lost.sum()))
    outside = int((steps.at(_moments(picture)) < 0).sum()) if len(steps) else 0
    sink.count("device events outside of steps", outside)
    sink.info |= {
        "steps": len(steps),
        "steps_by": steps.made_of,
        "modules_by": picture.modules.made_of,
        "stages": _in_order(picture),
        "kernels_unlinked": int(unlinked.sum()),
        "backward_attributed": _backward_attributed(picture),
    }
    if steps.made_of and not steps.made_of.startswith(("ProfilerStep", "steps of")):
        sink.note(f"no step marks: steps are made from {steps.made_of}")
    if not len(steps):
        sink.cannot_tell("step times: the file has no step marks, no optimizer and no loader")
    if has_counters and not len(scene.device):
        sink.cannot_tell("how busy the device was: the file has counters of kernels, but no kernel times")
    if not picture.modules.made_of:
        sink.cannot_tell("modules: the file names none (record with with_stack=True or with_modules=True)")


def _moments(picture: Picture) -> Any:
    calls = picture.launches.runtime
    starts = picture.scene.device.start_ns
    if not len(picture.scene.runtime):
        return starts
    return np.where(calls >= 0, picture.scene.runtime.start_ns[np.maximum(calls, 0)], starts)


def _backward_attributed(picture: Picture) -> float | None:
    """Share of the autograd engine's time that belongs to modules; None where there is neither."""
    if not picture.modules.made_of or picture.modules.direction_backward.any():
        return None
    top = (picture.nest.depth == 0) & (picture.places.direction == 1)
    walls = picture.scene.operators.wall_ns[top]
    owned = walls[picture.places.module[top] >= 0].sum()
    return float(owned / walls.sum()) if walls.sum() else None


def _in_order(picture: Picture) -> list[str]:
    """Stages in the order in which they first ran."""
    stages = picture.stages
    order = stages.path[np.argsort(stages.intervals.start_ns, kind="stable")].tolist()
    return [stages.paths[code] for code in dict.fromkeys(order)]


def _tell_private(sink: Sink, keys: list[str], suspects: set[str]) -> None:
    found = [*keys, *sorted(suspects - set(keys))]
    if found:
        shown = ", ".join(key[:60] for key in found[:12]) + (", ..." if len(found) > 12 else "")
        sink.note(
            f"the file holds what may be private (keys: {shown}); none of it is in the run, "
            "but think before passing the file on"
        )
        sink.info["private_keys"] = [key[:60] for key in found[:100]]


def _tell_damage(sink: Sink, text: Text) -> None:
    sink.count("unreadable bytes skipped", text.skipped_bytes)
    if text.cut:
        sink.note("the file ends before its events do: what was read until there is shown")
        sink.info["cut"] = True


def _tell_limit(sink: Sink, text: Text, events: int) -> None:
    if text.stopped:
        reason = f"limit {text.stopped} of {limit(text.stopped):,} {LIMITS[text.stopped].unit}"
        sink.note(
            f"partial: the first {events:,} events alone were read ({reason}: {raise_hint(text.stopped)})"
        )
        sink.info["cut"] = True


def _write_counters(sink: Sink, counters: list[CounterEvent]) -> None:
    """Counters of kernels, in order of time, as Nsight Compute's are kept."""
    ordered = sorted(counters, key=lambda event: event.ts or 0.0)
    rows = [
        (index, scrubbed(event.name or ""), metric, float(value))
        for index, event in enumerate(ordered)
        for metric, value in (event.args or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    frame = pl.DataFrame(
        rows,
        schema={"kernel": pl.Int64, "name": pl.String, "metric": pl.String, "value": pl.Float64},
        orient="row",
    )
    sink.add("kernel_metrics", frame)


def _write_memory(sink: Sink, scene: Scene, offset_ns: int) -> None:
    """Allocations of a profile with memory: changes, and what the allocator reserved."""
    memory = scene.memory
    if not len(memory):
        return
    order = np.argsort(memory.start_ns, kind="stable")
    on_cpu = memory.value("device_type")[order] == 0
    number = pl.Series(np.maximum(memory.value("device_id")[order], 0)).cast(pl.String)
    device = pl.select(
        pl.when(pl.Series(on_cpu)).then(pl.lit("cpu")).otherwise(pl.lit("cuda:") + number)
    ).to_series()
    frame = pl.DataFrame(
        {
            "time_ns": memory.start_ns[order] + offset_ns,
            "device": device,
            "delta_bytes": memory.value("memory_bytes")[order],
            "reserved": memory.value("reserved")[order],
        }
    )
    sink.add(
        "memory_changes",
        frame.select("time_ns", "device", pl.lit("unknown").alias("category"), "delta_bytes"),
    )
    reserved = frame.filter((pl.col("reserved") >= 0) & (pl.col("device") != "cpu"))
    sink.add(
        "memory_levels",
        reserved.select(
            "time_ns", "device", pl.lit("reserved").alias("level"), pl.col("reserved").alias("bytes")
        ),
    )
