"""The processor in the place of the device: how many of its cores a step kept busy."""

from __future__ import annotations

from typing import Any

import polars as pl

from detscope.analyze.device.timeline import merge_events
from detscope.analyze.step.columns import total

SOURCE = "step"  # of the telemetry rows that hold a step's processor time
PREFIX = "processor_ns "  # of their metric, followed by the phase; "step" is the whole
DEFINITION = (
    "processor time of all threads of the process, over wall time x cores; cores_busy: processor time over"
    " wall time"
)


def processor_figures(
    telemetry: pl.DataFrame, steps: pl.DataFrame, info: dict[str, Any]
) -> dict[str, Any] | None:
    """Thread utilisation per phase and over all measured steps; None where it was not recorded."""
    cores = _cores(info)
    used = telemetry.filter((pl.col("source") == SOURCE) & pl.col("metric").str.starts_with(PREFIX)).select(
        pl.col("time_ns").alias("start_ns"),
        pl.col("metric").str.strip_prefix(PREFIX).alias("phase"),
        pl.col("value").alias("used_ns"),
    )
    measured = steps.filter(pl.col("mode").is_in(["recorded", "ops"]))
    joined = measured.join(used, on=["start_ns", "phase"], how="inner")
    if joined.height == 0:
        return None
    rows = []
    for phase in joined["phase"].unique(maintain_order=True).to_list():
        own = joined.filter(pl.col("phase") == phase)
        wall_ns, used_ns = total(own["wall_ns"]), total(own["used_ns"])
        if wall_ns <= 0:
            continue
        rows.append(
            {
                "name": phase,
                "utilisation": used_ns / (wall_ns * cores) if cores else None,
                "cores_busy": used_ns / wall_ns,
                "processor_ns": used_ns,
                "wall_ns": wall_ns,
                "n": own.height,
            }
        )
    whole = next((row for row in rows if row["name"] == "step"), None)
    return {
        **(whole or {}),
        "cores": cores,
        "phases": [row for row in rows if row["name"] != "step"],
        "per_step": _per_step(joined.filter(pl.col("phase") == "step"), cores),
        "definition": DEFINITION,
    }


def _per_step(whole: pl.DataFrame, cores: int | None) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "cores_busy": used_ns / wall_ns,
            "utilisation": used_ns / wall_ns / cores if cores else None,
        }
        for step, used_ns, wall_ns in whole.sort("step").select("step", "used_ns", "wall_ns").iter_rows()
        if wall_ns > 0
    ]


def _cores(info: dict[str, Any]) -> int | None:
    facts = (info.get("environment") or {}).get("cpu") or {}
    return next((int(facts[key]) for key in ("usable_cores", "logical_cores") if facts.get(key)), None)


def thread_rows(host: pl.DataFrame, most: int = 16) -> list[dict[str, Any]]:
    """Threads of a recorded file: how long operators or runtime calls ran in each, busiest first."""
    columns = ("kind", "rank", "process", "thread", "start_ns", "wall_ns")
    work = host.select(columns).filter(pl.col("kind").is_in(["operator", "runtime"]))
    rows = []
    place = ("rank", "process", "thread")
    number = work.select(pl.struct(place).rank("dense").cast(pl.Int32)).to_series()
    first = work.select(pl.struct(place).is_first_distinct()).to_series().arg_true()
    for (rank, process, thread), which in zip(
        work[first].select(place).iter_rows(), number.gather(first).to_list(), strict=True
    ):
        own = work.select("start_ns", "wall_ns").filter(number == which)
        busy = merge_events(own)
        rows.append(
            {
                "rank": rank,
                "process": process,
                "thread": thread,
                "busy_ns": busy.length_ns,
                "span_ns": busy.span_ns,
                "events": own.height,
            }
        )
    return sorted(rows, key=lambda row: -row["busy_ns"])[:most]
