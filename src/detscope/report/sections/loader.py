"""The data pipeline: what the workers do and whether they keep up."""

from __future__ import annotations

from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.report.figures import is_number, mapping, number, plain, rows, with_unit
from detscope.report.model import Absent, Chart, Column, Section, Table
from detscope.report.sections.common import BLUE, GREEN, ORANGE, PINK

_REGIONS = (("load", BLUE), ("decode", ORANGE), ("transform", GREEN), ("collate", PINK))


def section(data: ReportData) -> Section | Absent:
    """Workers, capacity, demand."""
    loader = mapping(data.summary, "loader")
    workers = rows(loader, "workers")
    if not workers:
        return Absent("Data pipeline", plain(loader.get("why") or "the loader was not measured"))
    columns = [Column("worker"), Column("batches", "count")]
    columns += [Column(f"{name} ms", "ms") for name, _ in _REGIONS]
    columns += [Column("batch ms", "ms"), Column("busy", "share"), Column("loop waited ms", "ms")]
    keys = ["batches", *(f"{name}_ms" for name, _ in _REGIONS), "batch_ms", "busy_share", "wait_ms"]
    return Section(
        "loader",
        "Data pipeline",
        _title(loader),
        "Times are measured inside the workers, per batch. Capacity: images/s the workers make if they never"
        " wait; demand: what the loop would take if it never waited.",
        [
            _chart(workers),
            Table(
                "workers",
                "Work per batch, by worker",
                columns,
                [[_name(row), *(row.get(key) for key in keys)] for row in workers],
            ),
        ],
    )


def _name(row: Any) -> str:
    worker = row.get("worker")
    return "the loop itself" if is_number(worker) and worker < 0 else f"worker {worker}"


def _title(loader: Any) -> str:
    capacity, demand = loader.get("capacity_images_per_s"), loader.get("demand_images_per_s")
    wait = with_unit(loader.get("wait_ms"), "ms")
    if not (is_number(capacity) and is_number(demand)):
        return f"The loop waits {wait} per step for data"
    if loader.get("num_workers") == 0:
        return f"The loop loads its own data: {wait} of every step"
    keeps = "keep up" if capacity >= demand else "do not keep up"
    speeds = f"{number(capacity)} images/s against {number(demand)} wanted"
    return f"The workers {keeps}: {speeds}; waiting {wait} per step"


def _chart(workers: Any) -> Chart:
    names = [_name(row) for row in workers]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": region,
            "x": [row.get(f"{region}_ms") or 0 for row in workers],
            "y": names,
            "marker": {"color": colour},
        }
        for region, colour in _REGIONS
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "ms per batch"}}, "yaxis": {}}
    return Chart("workers-chart", "What workers do for one batch", traces, layout, 110 + 34 * len(workers))
