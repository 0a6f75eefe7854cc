"""What a file that was recorded elsewhere tells without our recorder: steps, stages, threads, a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from detscope.analyze.device.cores import CoreUse
from detscope.analyze.device.figures import DeviceUse
from detscope.analyze.device.processor import ThreadUse, thread_figures
from detscope.analyze.device.verdict import say_bound
from detscope.analyze.figure import Figure
from detscope.analyze.memory.figures import MemoryAccount, category_name
from detscope.analyze.stats import percent
from detscope.runs.reader import Run


class SourceCount(Figure, frozen=True, kw_only=True):
    """How many of something a file held, or its reader dropped, clipped or could not link."""

    name: str  # what it is called
    n: int  # how many


class SourceFact(Figure, frozen=True, kw_only=True):
    """Something that the file says of itself or its machine."""

    name: str  # with the way to it: devices[0].name
    value: str | float | int | bool | None  # as the file says it


class SourceFile(Figure, frozen=True, kw_only=True):
    """A file that was recorded elsewhere."""

    file: str | None  # its name
    format: str | None  # in words: Kineto / Chrome trace, ...
    rank: int | None  # that it was recorded on
    rows: tuple[SourceCount, ...]  # of each table that it became
    counts: tuple[SourceCount, ...]
    facts: tuple[SourceFact, ...]


class RecordedStage(Figure, frozen=True, kw_only=True):
    """A stage that the file's own marks name."""

    name: str  # what it is called
    total_ms: float  # in the whole file


class ImportedFigures(Figure, frozen=True, kw_only=True):
    """The files a run was imported from, and what they tell without our own recorder."""

    sources: tuple[SourceFile, ...]
    steps: int | None  # of the device's window, else that the host marked
    stages: tuple[RecordedStage, ...]  # empty where stages are known step by step
    threads: tuple[ThreadUse, ...]  # the busiest first


def imported_figures(
    run: Run, hosts: pl.DataFrame, use: DeviceUse, measured: int, known_stages: bool
) -> ImportedFigures:
    """What the files tell; stages of their own marks where they are not known step by step."""
    marks = hosts.filter(pl.col("kind") == "step").height
    return ImportedFigures(
        sources=read_sources(run.info),
        steps=use.steps or marks or measured or None,
        stages=() if known_stages else _sum_stages(hosts),
        threads=thread_figures(hosts),
    )


def judge_import(use: DeviceUse, memory: MemoryAccount | None, measured: int) -> tuple[str | None, list[str]]:
    """The verdict on files recorded elsewhere, and what they cannot tell."""
    unknown = [f"device use: {use.why}"] if use.why else []
    if use.verdict is not None:
        return say_bound(use.verdict), unknown
    if use.cores is not None:
        return _judge_counters(use.cores), unknown
    if memory is not None:  # a file about memory is not asked how busy the device was
        return _judge_memory(memory), []
    return None if measured else f"cannot tell how the device was used: {use.why}", unknown


def _sum_stages(hosts: pl.DataFrame) -> tuple[RecordedStage, ...]:
    stages = hosts.filter(pl.col("kind") == "stage")
    grouped = stages.group_by("name", maintain_order=True).agg(pl.col("wall_ns").sum())
    return tuple(RecordedStage(name=name, total_ms=ns / 1e6) for name, ns in grouped.iter_rows())


def _judge_memory(memory: MemoryAccount) -> str:
    """The peak in one sentence: at least how much, where the file began late."""
    peak = memory.peak_bytes
    if not peak:
        return "cannot tell the peak of memory from this file"
    size = f"{peak / 1e9:.2f} GB" if peak >= 1e9 else f"{peak / 1e6:.1f} MB"
    if memory.lower_bound_why is not None:
        return f"the peak is at least {size}; the true one cannot be known: recording began late"
    known = [category for category in memory.categories if category.name != "unknown" and category.bytes]
    if not known:
        return f"the peak of allocated memory is {size}"
    top = max(known, key=lambda category: category.bytes)
    return (
        f"the peak of allocated memory is {size}, {percent(top.bytes / peak)} of it {category_name(top.name)}"
    )


def _judge_counters(cores: CoreUse) -> str:
    """Counters of single kernels say how well kernels use the device, not how busy it is."""
    if (reached := cores.find_throughput()) is not None:
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
                for name, value in _flatten_facts(key, inner)
            ),
        )
        for source in info.get("sources") or []
    )


def _flatten_facts(name: str, value: Any) -> Iterator[tuple[str, str | float | int | bool | None]]:
    """Facts inside of facts by the whole way to them: devices[0].name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten_facts(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flatten_facts(f"{name}[{index}]", inner)
    else:
        yield name, value
