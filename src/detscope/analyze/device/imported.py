"""What a file that was recorded elsewhere tells without our recorder: steps, stages, threads, a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from detscope.analyze.device.cores import CoreUse
from detscope.analyze.device.figures import HOST_COLUMNS, read_device_use
from detscope.analyze.device.processor import ThreadUse, processor_figures, thread_figures
from detscope.analyze.figure import Figure
from detscope.analyze.stats import percent
from detscope.runs.reader import Run


class SourceCount(Figure, frozen=True, kw_only=True):
    """How many of something a file held, or its reader dropped, clipped or could not link."""

    name: str
    n: int


class SourceFact(Figure, frozen=True, kw_only=True):
    """Something that the file says of itself or its machine."""

    name: str
    value: str | float | int | bool | None


class SourceFile(Figure, frozen=True, kw_only=True):
    """A file that was recorded elsewhere."""

    file: str | None
    format: str | None
    rank: int | None
    rows: tuple[SourceCount, ...]  # of each table that it became
    counts: tuple[SourceCount, ...]
    facts: tuple[SourceFact, ...]


class RecordedStage(Figure, frozen=True, kw_only=True):
    """A stage that the file's own marks name."""

    name: str
    total_ms: float  # in the whole file


class ImportedFigures(Figure, frozen=True, kw_only=True):
    """The files a run was imported from, and what they tell without our own recorder."""

    sources: tuple[SourceFile, ...]
    steps: int | None  # of the device's window, else that the host marked
    stages: tuple[RecordedStage, ...]  # empty where stages are known step by step
    threads: tuple[ThreadUse, ...]  # the busiest first


def add_device(summary: dict[str, Any], run: Run) -> None:
    """Put device use, cores and what an imported file tells into the summary."""
    hosts = run.table("host_events", HOST_COLUMNS)
    use = summary["device_use"] = read_device_use(run, hosts)
    summary["processor"] = processor_figures(run.table("telemetry"), run.table("steps"), run.info)
    summary["imported"] = None
    if run.info.get("verb") != "import" or use is None:
        return
    measured = summary["step_ms"].n
    marks = hosts.filter(pl.col("kind") == "step").height
    stages = () if summary["stages"] else _sum_stages(hosts)
    summary["imported"] = ImportedFigures(
        sources=read_sources(run.info),
        steps=use.steps or marks or measured or None,
        stages=stages,
        threads=thread_figures(hosts),
    )
    if use.verdict is not None:
        summary["verdict"] = use.verdict.sentence
    elif use.cores is not None:
        summary["verdict"] = _judge_counters(use.cores)
    elif memory := summary.get("memory"):
        summary["verdict"] = _judge_memory(memory)
        return  # a file about memory is not asked how busy the device was
    elif not measured:
        summary["verdict"] = f"cannot tell how the device was used: {use.why}"
    if use.why:
        summary["cannot_tell"] = [*summary.get("cannot_tell", []), f"device use: {use.why}"]


def _sum_stages(hosts: pl.DataFrame) -> tuple[RecordedStage, ...]:
    stages = hosts.filter(pl.col("kind") == "stage")
    grouped = stages.group_by("name", maintain_order=True).agg(pl.col("wall_ns").sum())
    return tuple(RecordedStage(name=name, total_ms=ns / 1e6) for name, ns in grouped.iter_rows())


def _judge_memory(memory: dict[str, Any]) -> str:
    """The peak in one sentence: at least how much, where the file began late."""
    peak = memory.get("peak_bytes")
    if not peak:
        return "cannot tell the peak of memory from this file"
    size = f"{peak / 1e9:.2f} GB" if peak >= 1e9 else f"{peak / 1e6:.1f} MB"
    if str(memory.get("peak_is", "measured")).startswith("a lower bound"):
        return f"the peak is at least {size}; the true one cannot be known: recording began late"
    categories = memory.get("categories") or {}
    known = {name: value for name, value in categories.items() if name != "unknown" and value}
    if not known:
        return f"the peak of allocated memory is {size}"
    top = max(known, key=lambda name: known[name])
    return f"the peak of allocated memory is {size}, {percent(known[top] / peak)} of it {top}"


def _judge_counters(cores: CoreUse) -> str:
    """Counters of single kernels say how well kernels use the device, not how busy it is."""
    if (reached := cores.throughput()) is not None:
        return f"kernels reach {percent(reached, 1)} of the device's compute throughput"
    return f"{cores.kernels or 0} kernels with counters; how busy the device was is in another recording"


def read_sources(info: Mapping[str, Any]) -> tuple[SourceFile, ...]:
    """The files a run was imported from."""
    return tuple(
        SourceFile(
            file=source.get("file"),
            format=source.get("format"),
            rank=source.get("rank"),
            rows=tuple(SourceCount(name=name, n=n) for name, n in (source.get("rows") or {}).items()),
            counts=tuple(SourceCount(name=name, n=n) for name, n in (source.get("counts") or {}).items()),
            facts=tuple(
                SourceFact(name=name, value=value)
                for key, inner in source.items()
                if key not in ("file", "format", "rank", "rows", "counts")
                for name, value in _flatten(key, inner)
            ),
        )
        for source in info.get("sources") or []
    )


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str | float | int | bool | None]]:
    """Facts inside of facts by the whole way to them: devices[0].name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flatten(f"{name}[{index}]", inner)
    else:
        yield name, value
