"""What the host and its loader did in a step: phases, stages, modules, operators, workers, collectives."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from detscope.analyze.memory.blocks import NEVER
from detscope.analyze.timeline.figures import SpanNames, TimelineLane, TimelineWindow, make_lane, tell_columns
from detscope.runs.reader import Run

_TRACKS = (
    ("phases", "phase", "Phases"),
    ("stages", "stage", "Stages"),
    ("modules", "module", "Modules"),
    ("operators", "operator", "Operators"),
    ("kernels", "kernel", "Kernels"),
    ("device phases", "phase", "Phases on the device, by its marks"),
    ("device stages", "stage", "Stages on the device, by its marks"),
)
_EVENTS = (
    ("phase", "Phases"),
    ("stage", "Stages"),
    ("annotation", "Annotations"),
    ("module", "Modules"),
    ("operator", "Operators"),
    ("loader", "Loading in the loop"),
)


def read_host_lanes(
    timeline: pl.DataFrame, step: int | None, window: TimelineWindow, known: SpanNames
) -> Iterator[TimelineLane]:
    """Lanes of a step that detscope recorded; a device may end after the host, and is drawn to its end."""
    if step is None:  # a recording of others without steps: it has events and no drawn spans
        return
    own = timeline.filter(pl.col("step") == step)
    reach = TimelineWindow(window.start_ns, NEVER)
    for track, kind, title in _TRACKS:
        rows = own.filter(pl.col("track") == track).with_columns(group=_group_of(kind))
        if kind == "stage":  # drawn in colours of stages, so that the direction must be said
            rows = rows.with_columns(about=tell_columns(direction=pl.col("direction")))
        lane = make_lane(title, kind, rows, reach, known)
        if lane is not None:
            yield lane


def _group_of(kind: str) -> pl.Expr:
    if kind == "phase":
        return pl.col("name")
    if kind == "stage":
        return pl.lit("stage ") + pl.col("name")
    return pl.when(pl.col("direction") == "").then(pl.lit(kind)).otherwise("direction")


def read_event_lanes(host: pl.DataFrame, window: TimelineWindow, known: SpanNames) -> Iterator[TimelineLane]:
    """Lanes of a step that another tool recorded: by kind of event, operators and modules by thread."""
    inside = window.overlap_rows(host)
    rank = inside["rank"].min()
    inside = inside.filter(pl.col("rank").eq_missing(rank))
    for kind, title in _EVENTS:
        own = inside.filter(pl.col("kind") == kind).with_columns(
            group=pl.col("name") if kind == "phase" else pl.lit(kind),
            about=tell_columns(line=pl.col("stack")),
        )
        threads = own.group_by("process", "thread", maintain_order=True).len().sort("len", descending=True)
        for place, (process, thread, _) in enumerate(threads.iter_rows()):
            rows = own.filter(
                pl.col("process").eq_missing(process) & pl.col("thread").eq_missing(thread)
            ).sort("start_ns")
            named = f"{title}, thread {thread}" if place else title
            lane = make_lane(named, kind, rows, window, known)
            if lane is not None:
                yield lane


def read_loader_lanes(run: Run, window: TimelineWindow, known: SpanNames) -> Iterator[TimelineLane]:
    """A lane per worker: batches made meanwhile, whichever step they are for."""
    loader = window.overlap_rows(run.table("loader"))
    batch = pl.col("region") == "batch"
    named = loader.with_columns(
        name=pl.when(batch).then(pl.format("batch of step {}", "step")).otherwise("region"),
        group=pl.lit("loader ") + pl.col("region"),
    ).sort(~batch, maintain_order=True)
    for worker in sorted(named["worker"].unique().to_list()):
        title = "Loading in the loop" if worker < 0 else f"Loader worker {worker}"
        lane = make_lane(title, "loader", named.filter(pl.col("worker") == worker), window, known)
        if lane is not None:
            yield lane


def read_collectives(run: Run, window: TimelineWindow, known: SpanNames) -> Iterator[TimelineLane]:
    """What rank 0 exchanged with the others."""
    own = run.table("communication").filter(pl.col("rank") == 0)
    bucket = pl.when(pl.col("kind") == "gradients").then(pl.format("bucket {}", "bucket")).otherwise("kind")
    rows = own.with_columns(name=bucket, group=pl.lit("communication"))
    lane = make_lane("Collectives of rank 0", "communication", rows, window, known)
    if lane is not None:
        yield lane
