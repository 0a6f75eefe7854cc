"""The machine around the device: cores that a step kept busy, threads of a file, sampled telemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from detscope.analyze.device.timeline import merge_events
from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure
from detscope.analyze.step.columns import total

SOURCE = "step"  # of the telemetry rows that hold a step's processor time
RUNNING_TOTALS = ("energy_joules", "read_bytes", "write_bytes")
MASK = "throttle_reasons"
# as NVML counts them; an idle GPU and a clock that was set are no throttling, and yet the reason for a clock
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "clocks held equal to other GPUs",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
    0x100: "clocks set for a display",
}
PREFIX = "processor_ns "  # of their metric, followed by the phase; "step" is the whole


class PhaseCores(Figure, frozen=True, kw_only=True):
    """How many cores one phase kept busy."""

    name: str  # of the phase
    cores_busy: float  # processor time over wall time
    utilisation: float | None  # of all cores
    processor_ns: float  # of all threads
    wall_ns: float  # of the phase
    n: int  # steps


class StepCores(Figure, frozen=True, kw_only=True):
    """How many cores one step kept busy."""

    step: int  # its number, from 0
    cores_busy: float  # processor time over wall time
    utilisation: float | None  # of all cores


class ProcessorUse(Figure, frozen=True, kw_only=True):
    """The processor in the place of the device: how many of its cores the measured steps kept busy."""

    cores: int | None  # that the process may use
    cores_busy: float | None = None  # processor time over wall time
    utilisation: float | None = None  # of all cores
    processor_ns: float | None = None  # of all threads, in measured steps
    wall_ns: float | None = None  # of these steps
    n: int | None = None  # steps
    phases: tuple[PhaseCores, ...]
    per_step: tuple[StepCores, ...]
    definition: str = (
        "processor time of all threads of the process, over wall time x cores; cores_busy: processor time"
        " over wall time"
    )


class ThreadUse(Figure, frozen=True, kw_only=True):
    """A thread of a recorded file: how long operators or runtime calls ran in it."""

    rank: int | None  # from 0
    process: int | None  # its number
    thread: int | None  # its number
    busy_ns: int  # in operators or runtime calls
    span_ns: int  # from its first event to its last
    events: int  # operators and runtime calls


class TelemetryFigures(Figure, frozen=True, kw_only=True):
    """One metric of one source, sampled while the run went on."""

    source: str  # process, core:0, gpu:0, ...
    metric: str  # what was sampled
    unit: str | None  # of its values
    mean: float | None  # over all samples; None of a running total
    max: float | None  # the highest sample; None of a running total and of a reason for throttling
    total: float | None = None  # of a running total: from the first sample to the last
    n: int  # samples


def processor_figures(
    telemetry: pl.DataFrame, steps: pl.DataFrame, info: Mapping[str, Any]
) -> ProcessorUse | None:
    """Thread utilisation per phase and over all measured steps; None where it was not recorded."""
    facts = (info.get("environment") or {}).get("cpu") or {}
    known = (int(facts[key]) for key in ("usable_cores", "logical_cores") if facts.get(key))
    cores = next(known, None)
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
        if wall_ns > 0:
            rows.append(
                PhaseCores(
                    name=phase,
                    cores_busy=used_ns / wall_ns,
                    utilisation=divide_safely(used_ns, wall_ns * (cores or 0)),
                    processor_ns=used_ns,
                    wall_ns=wall_ns,
                    n=own.height,
                )
            )
    whole = next((row for row in rows if row.name == "step"), None)
    of_steps = joined.filter((pl.col("phase") == "step") & (pl.col("wall_ns") > 0)).sort("step")
    return ProcessorUse(
        cores=cores,
        **{key: getattr(whole, key) for key in PhaseCores.__struct_fields__ if whole and key != "name"},
        phases=tuple(row for row in rows if row.name != "step"),
        per_step=tuple(
            StepCores(
                step=step,
                cores_busy=used_ns / wall_ns,
                utilisation=divide_safely(used_ns / wall_ns, cores or 0),
            )
            for step, used_ns, wall_ns in of_steps.select("step", "used_ns", "wall_ns").iter_rows()
        ),
    )


def thread_figures(host: pl.DataFrame, most: int = 16) -> tuple[ThreadUse, ...]:
    """Threads of a recorded file, the busiest first."""
    columns = ("kind", "rank", "process", "thread", "start_ns", "wall_ns")
    work = host.select(columns).filter(pl.col("kind").is_in(["operator", "runtime"]))
    place = ("rank", "process", "thread")
    number = work.select(pl.struct(place).rank("dense").cast(pl.Int32)).to_series()
    first = work.select(pl.struct(place).is_first_distinct()).to_series().arg_true()
    found = []
    for (rank, process, thread), which in zip(
        work[first].select(place).iter_rows(), number.gather(first).to_list(), strict=True
    ):
        own = work.select("start_ns", "wall_ns").filter(number == which)
        busy = merge_events(own)
        found.append(
            ThreadUse(
                rank=rank,
                process=process,
                thread=thread,
                busy_ns=busy.length_ns,
                span_ns=busy.span_ns,
                events=own.height,
            )
        )
    return tuple(sorted(found, key=lambda row: -row.busy_ns)[:most])


def telemetry_figures(telemetry: pl.DataFrame) -> tuple[TelemetryFigures, ...]:
    """Mean and maximum of every metric; of running totals what came to them, of masks each bit's share."""
    sampled = telemetry.filter(pl.col("source") != SOURCE)  # a step's own figures are shown elsewhere
    grows, mask = pl.col("metric").is_in(RUNNING_TOTALS), pl.col("metric") == MASK
    keys, value = ("source", "metric", "unit"), pl.col("value")
    plain = sampled.filter(~grows & ~mask).group_by(keys)
    rows = plain.agg(value.mean().alias("mean"), value.max().alias("max"), pl.len().alias("n")).to_dicts()
    totals = sampled.filter(grows).sort("time_ns").group_by(keys)
    found = totals.agg((value.last() - value.first()).alias("total"), pl.len().alias("n"))
    rows += [{**row, "mean": None, "max": None} for row in found.to_dicts()]
    for (source,), part in sampled.filter(mask).group_by("source"):
        values = part["value"].cast(pl.Int64).to_list()
        for bit, reason in THROTTLE_REASONS.items():
            if on := sum(bool(one & bit) for one in values):
                share = {"unit": "%", "mean": 100 * on / len(values), "max": None, "n": len(values)}
                rows.append({"source": source, "metric": f"throttled: {reason}", **share})
    ordered = sorted(rows, key=lambda row: (row["source"], row["metric"]))
    return tuple(TelemetryFigures(**row) for row in ordered)
