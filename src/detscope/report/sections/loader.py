"""The data pipeline: what the workers do and whether they keep up."""

from __future__ import annotations

from collections.abc import Iterator

from detscope.analyze.drawing import ReportData
from detscope.analyze.step.loader import LoaderFigures, WorkerFigures
from detscope.report.colours import BLUE, GREEN, ORANGE, PINK
from detscope.report.figures import CANNOT_TELL, number, with_unit
from detscope.report.model import (
    SEARCHED_ROWS,
    Absent,
    Axis,
    Block,
    Chart,
    Column,
    Fact,
    Facts,
    Section,
    Series,
    Table,
    Value,
)
from detscope.report.sections import SectionPart


def section(data: ReportData) -> Section | Absent:
    """Workers, capacity, demand."""
    loader: LoaderFigures = data.summary.loader
    if not loader.workers:
        return Absent("Data pipeline", loader.why or "the loader was not measured")
    columns = [
        Column("worker"),
        Column("batches", "count"),
        Column("load ms", "ms"),
        Column("decode ms", "ms"),
    ]
    columns += [Column("transform ms", "ms"), Column("collate ms", "ms"), Column("batch ms", "ms")]
    columns += [Column("busy", "share"), Column("loop waited ms", "ms")]
    rows: list[list[Value]] = [
        [
            _worker_name(row),
            row.batches,
            row.load_ms,
            row.decode_ms,
            row.transform_ms,
            row.collate_ms,
            row.batch_ms,
            row.busy_share,
            row.wait_ms,
        ]
        for row in loader.workers
    ]
    return Section(
        "loader",
        "Data pipeline",
        _headline(loader),
        "Times are measured inside the workers, per batch. Capacity: images/s the workers make if they never"
        " wait; demand: what the loop would take if it never waited.",
        [
            Facts(list(_loader_facts(loader)), full=False),
            _workers_chart(loader),
            Table("workers", "Work per batch, by worker", columns, rows, brief_rows=8),
            *_transform_blocks(loader),
        ],
    )


def _worker_name(row: WorkerFigures) -> str:
    return "the loop itself" if row.worker < 0 else f"worker {row.worker}"


def _loader_facts(loader: LoaderFigures) -> Iterator[Fact]:
    can, could = (
        CANNOT_TELL if value is None else with_unit(value, "images/s")
        for value in (loader.capacity_images_per_s, loader.demand_images_per_s)
    )
    yield Fact("loader", f"can deliver {can}; the loop could take {could}")
    received = loader.receive_ms
    part = f", {with_unit(received, 'ms')} of it to receive what was made" if received is not None else ""
    if loader.host_wait_ms is None:
        yield Fact("", f"the loop waited {with_unit(loader.wait_ms, 'ms')} per step for data{part}")
    else:
        hosts = f"the host waited {with_unit(loader.host_wait_ms, 'ms')} per step for data"
        yield Fact("", f"{hosts}, the device {with_unit(loader.wait_ms, 'ms')}{part}")


def _transform_blocks(loader: LoaderFigures) -> Iterator[Block]:
    if not loader.transforms:
        return
    sentence = tell_dearest(loader)
    if sentence is not None:
        yield Facts([Fact("transforms", sentence)])
    fields = [Column("name", "code"), Column("class or line", "code", brief=False), Column("ms/image", "ms")]
    fields += [Column("with parts ms", "ms", brief=False), Column("share", "share")]
    fields += [Column("calls/image", "number"), Column("applied/image", "number", brief=False)]
    fields += [Column("where"), Column("how")]
    rows: list[list[Value]] = [
        [
            one.name if one.inside is None else f"{one.name} in {one.inside}",
            one.origin,
            one.ms_per_image,
            one.total_ms_per_image,
            one.share,
            one.calls_per_image,
            one.applied_per_image,
            _PLACES.get(one.where, one.where),
            _HOW.get(one.kind, one.kind),
        ]
        for one in loader.transforms
    ]
    long = len(rows) > SEARCHED_ROWS
    caption = "What is done to an image, without parts that are listed themselves"
    yield Table("transforms", caption, fields, rows, searchable=long, brief_rows=16)


_PLACES = {"loop": "the loop itself", "batch": "whole batches", "device": "whole batches, device"}
_HOW = {"sampled": "seen by a timer", "rest": "nobody knows", "region": "marked", "dataset": "its own code"}


def tell_dearest(loader: LoaderFigures) -> str | None:
    """How many workers it takes, and which one transform to do something about."""
    needed, each_ms, dearest = loader.workers_needed, loader.worker_ms_per_image, loader.dearest
    told = []
    if needed is not None and each_ms is not None:
        workers = "1 worker" if needed == 1 else f"{needed} workers"
        now = "" if loader.num_workers is None else f" (now {loader.num_workers})"
        speed = f"at {with_unit(each_ms, 'ms')} per image"
        told.append(f"{workers} would be needed{now} for the loop to wait for none, {speed}")
    if dearest is not None and dearest.share is not None:
        calls, applied = dearest.calls_per_image, dearest.applied_per_image
        random = applied is not None and calls is not None and applied < 0.98 * calls
        do = "lower its probability, or drop it" if random else "move it to the device, or drop it"
        if dearest.kind != "transform":
            do = "do it once beforehand, or less of it"
        cost = f"{dearest.share:.0%}, {with_unit(dearest.ms_per_image, 'ms')}"
        told.append(f"the dearest is {dearest.name} ({cost}): {do}")
    return "; ".join(told) or None


def _headline(loader: LoaderFigures) -> str:
    capacity, demand = loader.capacity_images_per_s, loader.demand_images_per_s
    wait = with_unit(loader.wait_ms, "ms")
    if capacity is None or demand is None:
        who = "loop" if loader.host_wait_ms is None else "device"
        return f"The {who} waits {wait} per step for data"
    if loader.num_workers == 0:
        return f"The loop loads its own data: {wait} of every step"
    keeps = "keep up" if capacity >= demand else "do not keep up"
    speeds = f"{number(capacity)} images/s against {number(demand)} wanted"
    return f"The workers {keeps}: {speeds}; waiting {wait} per step"


def _workers_chart(loader: LoaderFigures) -> Chart:
    names = [_worker_name(row) for row in loader.workers]
    regions = (
        ("load", [row.load_ms for row in loader.workers], BLUE),
        ("decode", [row.decode_ms for row in loader.workers], ORANGE),
        ("transform", [row.transform_ms for row in loader.workers], GREEN),
        ("collate", [row.collate_ms for row in loader.workers], PINK),
    )
    lines = [Series(region, values, names, colour, "bars") for region, values, colour in regions]
    label, height = "What workers do for one batch", 110 + 34 * len(names)
    return Chart("workers-chart", label, lines, Axis("ms per batch"), height=height)


PART = SectionPart("loader", 80, section, unasked=("infer", "eval", "import"))
