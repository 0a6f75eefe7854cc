"""Recorded files become runs: read, put together what belongs together, written as any other run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from detscope.errors import DetscopeError, InputError
from detscope.ingest.formats import find_format
from detscope.ingest.sink import Format, Sink
from detscope.runs.definitions import DEFINITIONS
from detscope.runs.writer import RunWriter

# tables that say of which rank a row is; of the others only one rank's rows are kept
TABLES_WITH_RANK = ("device_events", "host_events")


@dataclass
class RecordedRank:
    """One file that was read."""

    path: Path
    format: Format
    sink: Sink
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)


@dataclass(frozen=True)
class ImportResult:
    """What became of the files."""

    runs: list[Path]
    failures: list[DetscopeError]


def import_files(
    paths: Sequence[Path], out: Path, name: str | None = None, tell: Callable[[str], None] = lambda _: None
) -> ImportResult:
    """Read files and write runs; ranks of one job, and what different tools saw of one, share a run."""
    recordings: list[RecordedRank] = []
    failures: list[DetscopeError] = []
    for path in paths:
        try:
            recordings.append(read_file(path))
        except DetscopeError as error:
            failures.append(error)
    if not recordings:
        raise failures[0]
    groups = _group_jobs(recordings)
    if len(groups) > 1:
        tell(f"{len(recordings)} files become {len(groups)} runs: they are not ranks of one job")
    return ImportResult([write_run(group, out, name) for group in groups], failures)


def read_file(path: Path) -> RecordedRank:
    """Read one file, whatever format it has."""
    found = find_format(path)
    frames: dict[str, list[pl.DataFrame]] = {}
    sink = Sink(write=lambda table, frame: frames.setdefault(table, []).append(frame))
    try:
        found.read(path, sink)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}", "check the path and its rights"
        ) from error
    except DetscopeError as error:
        if path.name not in error.message:
            error.message = f"{path.name}: {error.message}"
        raise
    _give_memory_back()
    if not frames:
        raise InputError(f"{path}: nothing usable in it ({found.name})", "record it again")
    return RecordedRank(path, found, sink, frames)


def _give_memory_back() -> None:
    """Hand freed memory to the system: millions of small objects leave a third of the peak in the heap."""
    with suppress(OSError, AttributeError, TypeError):  # other C libraries do without
        ctypes.CDLL(None).malloc_trim(0)


def _group_jobs(recordings: Sequence[RecordedRank]) -> list[list[RecordedRank]]:
    """Ranks of one job together; files of different tools together, one of each; the others alone."""
    if len({recording.format.name for recording in recordings}) == len(recordings):
        return [list(recordings)]
    groups: list[list[RecordedRank]] = []
    for recording in (one for one in recordings if "rank" in one.sink.info):
        rank, size = recording.sink.rank, recording.sink.info.get("world_size")
        for group in groups:
            if all(one.sink.info.get("world_size") == size and one.sink.rank != rank for one in group):
                group.append(recording)
                break
        else:
            groups.append([recording])
    return groups + [[recording] for recording in recordings if "rank" not in recording.sink.info]


def write_run(group: Sequence[RecordedRank], out: Path, name: str | None = None) -> Path:
    """Write one run from files that belong together."""
    group = sorted(group, key=lambda recording: recording.sink.rank)
    aligned = _align_clocks(group)
    ranks = [recording.sink.rank for recording in group]
    several = len(set(ranks)) > 1
    label = group[0].path.name
    for suffix in (".gz", ".json", ".sqlite", ".csv", ".pickle"):
        label = label.removesuffix(suffix)
    label = name or label or "recording"
    notes: list[str] = []
    damage: list[str] = []  # why the run is only a part of what was recorded
    for recording in group:
        prefix = f"{recording.path.name}: " if len(group) > 1 else ""
        counts = {what: f"{number:,} {what}" for what, number in recording.sink.counts.items()}
        notes += [prefix + note for note in (*recording.sink.notes, *counts.values())]
        if recording.sink.info.get("cut"):
            damage.append(f"{recording.path.name} is cut")
        damage += [text for what, text in counts.items() if what in recording.sink.damage]
    if several:
        notes.append(f"steps, modules and operators are those of rank {ranks[0]}")
    info: dict[str, Any] = {
        "model": {"name": label},
        "device": _name_devices(group),
        "level": "ops",
        "sources": [
            {
                "file": recording.path.name,
                "format": recording.format.name,
                "rank": recording.sink.rank,
                "rows": recording.sink.rows,
                "counts": recording.sink.counts,
                **{key: val for key, val in recording.sink.info.items() if key not in ("rank", "format")},
            }
            for recording in group
        ],
        "stages": group[0].sink.info.get("stages", []),
        "cannot_tell": list(dict.fromkeys(text for one in group for text in one.sink.unknown)),
        "definitions": DEFINITIONS,
    }
    linked = next((one.sink.info for one in group if "kernels_unlinked" in one.sink.info), None)
    if linked is not None:
        info["operators"] = {"steps": max(1, int(linked.get("steps") or 0))}
        if linked.get("modules_by"):
            info["operators"]["backward_attributed"] = linked.get("backward_attributed")
    info["notes"] = [*notes, *aligned]
    writer = RunWriter(out, "import", label, info)
    seen: set[str] = set()
    for recording in group:
        for table, frames in recording.frames.items():
            for frame in frames:
                if table in TABLES_WITH_RANK or table not in seen:
                    writer.append_frame(table, frame)
                if table == "steps" and several:  # `steps` are the first rank's, these are everybody's
                    rank = pl.lit(recording.sink.rank, pl.Int64)
                    writer.append_frame("rank_steps", frame.with_columns(rank=rank))
        seen |= set(recording.frames)
        recording.frames.clear()
    writer.close_run("partial" if damage else "ok", ", ".join(damage) or None)
    _give_memory_back()
    return writer.folder


def _name_devices(group: Sequence[RecordedRank]) -> str | None:
    """Names of the devices the files are about; None where they do not say."""
    names: list[str] = []
    for recording in group:
        known = {d.get("id"): str(d["name"]) for d in recording.sink.info.get("devices", []) if d.get("name")}
        frames = recording.frames.get("device_events", [])
        used = {number for frame in frames for number in frame["device"].unique().to_list()} - {None}
        # some files number devices in one way and list them in another: then any of them may be meant
        names += [known[number] for number in sorted(used) if number in known] or (
            known.values() if used else ()
        )
    return ", ".join(dict.fromkeys(names)) or None


def _align_clocks(group: Sequence[RecordedRank]) -> list[str]:
    """Ranks whose clocks do not overlap are shifted so that their first common step begins together."""
    if len(group) < 2:
        return []
    reference = group[0]
    begin, end = _find_span(reference) or (None, None)
    notes = []
    for recording in group[1:]:
        span = _find_span(recording)
        if span is None or begin is None or end is None or (span[0] < end and begin < span[1]):
            continue
        own, theirs = _find_steps(recording), _find_steps(reference)
        common = next((name for name in theirs if name in own), None)
        if common is None:
            notes.append(
                f"{recording.path.name}: its clock does not overlap that of {reference.path.name} and there"
                " is no common step: times of the two cannot be compared"
            )
            continue
        shift_ns = theirs[common] - own[common]
        for table in (*TABLES_WITH_RANK, "steps"):
            for index, frame in enumerate(recording.frames.get(table, [])):
                names = [name for name in ("start_ns", "launch_ns") if name in frame.columns]
                recording.frames[table][index] = frame.with_columns(pl.col(names) + shift_ns)
        notes.append(
            f"{recording.path.name}: moved by {shift_ns / 1e6:.3f} ms to begin its steps with the others"
        )
    return notes


def _find_span(recording: RecordedRank) -> tuple[int, int] | None:
    found = [
        (frame["start_ns"].min(), (frame["start_ns"] + frame["wall_ns"]).max())
        for table in TABLES_WITH_RANK
        for frame in recording.frames.get(table, [])
    ]
    known = [(first, last) for first, last in found if isinstance(first, int) and isinstance(last, int)]
    return (min(first for first, _ in known), max(last for _, last in known)) if known else None


def _find_steps(recording: RecordedRank) -> dict[str, int]:
    frames = recording.frames.get("host_events", [])
    rows = [frame.filter(pl.col("kind") == "step").select("name", "start_ns") for frame in frames]
    return {name: start for frame in rows for name, start in frame.iter_rows()}
