"""What the peak of allocated memory is made of: category, module, tensor, phase; levels never mixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import polars as pl

from detscope.analyze.memory.blocks import (
    CATEGORIES,
    PER_IMAGE,
    Ledger,
    Window,
    ledger_of,
    owners,
    peak_event,
    windows_of,
)
from detscope.analyze.memory.changes import account_of_changes
from detscope.analyze.memory.figures import (
    CategoryBytes,
    MemoryAccount,
    MemorySlope,
    ModuleMemory,
    NamedPeak,
    OtherDevice,
    PassMemory,
    PeakMoment,
    RecordedMemory,
    StepPeak,
    StepPeaks,
    TensorMemory,
    TriedAdvice,
)
from detscope.analyze.memory.levels import memory_levels
from detscope.analyze.memory.oom import explain_oom
from detscope.analyze.stats import median_interval, robust_spread
from detscope.runs.reader import Run

LARGEST = 10
UNKNOWN_PEAK = "true peak: "  # how an import says that its file began late
WHAT = "bytes of live tensors on {device}, tensors that share storage counted once"


def memory_account(run: Run) -> MemoryAccount | None:
    """The memory account of a run; None where none was recorded."""
    blocks = run.table("memory")
    if not blocks.height:
        changes = run.table("memory_changes")
        return account_of_changes(changes) if changes.height else None
    device = main_device(run, blocks)
    ledger = ledger_of(blocks.filter(pl.col("device") == device))
    windows = windows_of(ledger, run.table("steps"))
    event, window = find_peak(ledger, windows)
    peak_bytes = int(ledger.level[event])
    alive = owners(ledger.blocks.filter(pl.Series(ledger.alive(event))))
    categories = by_category(alive)
    late = next(
        (str(text) for text in run.info.get("cannot_tell") or [] if str(text).startswith(UNKNOWN_PEAK)), None
    )
    ran_out = str(run.status).startswith("oom") or run.info.get("oom")
    return MemoryAccount(
        what=WHAT.format(device=device),
        device=device,
        peak_bytes=peak_bytes,
        lower_bound_why=None if late is None else late.removeprefix(UNKNOWN_PEAK),
        at=_peak_moment(ledger, event, window),
        categories=tuple(CategoryBytes(name=name, bytes=size) for name, size in categories.items()),
        unknown_share=categories["unknown"] / peak_bytes if peak_bytes else None,
        modules=_modules_at_peak(alive, peak_bytes),
        largest=_largest_tensors(alive),
        phases=_levels_by(ledger, windows, "phase"),
        stages=_levels_by(ledger, windows, "stage"),
        steps=step_peaks(ledger, windows),
        other_devices=_other_devices(blocks, device),
        levels=memory_levels(run.table("memory_levels"), ledger, windows, device),
        slope=_slope_at(ledger, event, run.info.get("batch_size")),
        recorded=_recorded_memory(run.info.get("memory") or {}),
        blocks=ledger.blocks.height,
        oom=explain_oom(run, ledger, windows) if ran_out else None,
        tried=tuple(msgspec.convert(run.info.get("memory_tried") or [], list[TriedAdvice])),
    )


def pass_memory(told: Mapping[str, Any] | None) -> PassMemory:
    """What an inference measured on a few passes."""
    if not told:
        return PassMemory(why="the run ended before it")
    fields = {name: told[name] for name in PassMemory.__struct_fields__ if told.get(name) is not None}
    return msgspec.convert(fields, PassMemory, strict=False)


def _recorded_memory(told: Mapping[str, Any]) -> RecordedMemory:
    """What the recorder itself says of its account."""
    live = told.get("live_bytes") or {}
    return RecordedMemory(
        definition=told.get("definition"),
        steps=tuple(told.get("steps") or ()),
        live_bytes=tuple(CategoryBytes(name=name, bytes=size) for name, size in live.items()),
        unknown_frees=told.get("unknown_frees"),
        unknown_free_bytes=told.get("unknown_free_bytes"),
        unseen_frees=told.get("unseen_frees"),
    )


def _slope_at(ledger: Ledger, event: int, batch_size: int | None) -> MemorySlope | None:
    """Bytes per image at a moment, and the fixed part; None where the batch is not known."""
    if not batch_size:
        return None
    alive = ledger.blocks.filter(pl.Series(ledger.alive(event)))
    variable = int(alive.filter(pl.col("category").is_in(PER_IMAGE))["bytes"].sum())
    return MemorySlope(
        batch_size=batch_size,
        bytes_per_image=variable / batch_size,
        fixed_bytes=int(ledger.level[event]) - variable,
    )


def main_device(run: Run, blocks: pl.DataFrame) -> str:
    """The device the run was on; else the one that held most."""
    devices = blocks.group_by("device").agg(pl.col("bytes").sum()).sort("bytes", descending=True)
    names = [str(name) for name in devices["device"].to_list()]
    wanted = str(run.info.get("device") or "")
    for name in names:
        if wanted and (name == wanted or name == f"{wanted}:0" or wanted == f"{name}:0"):
            return name
    return names[0]


def find_peak(ledger: Ledger, windows: list[Window]) -> tuple[int, Window | None]:
    """The highest moment of the measured steps (of all, where none was measured), and its step."""
    measured = [window for window in windows if window.mode != "warmup"] or windows
    if not measured:
        return peak_event(ledger, 0, len(ledger.level)), None
    peaks = [peak_event(ledger, window.first, window.last) for window in measured]
    best = max(range(len(peaks)), key=lambda index: int(ledger.level[peaks[index]]))
    return peaks[best], measured[best]


def _largest_tensors(alive: pl.DataFrame) -> tuple[TensorMemory, ...]:
    return tuple(
        TensorMemory(
            bytes=row["bytes"],
            shape=row["shape"],
            dtype=row["dtype"],
            operator=row["operator"],
            category=row["category"],
            name=row["name"],
            stack=row["stack"],
            module=row["owner"],
            phase=row["phase"],
            stage=row["stage"],
        )
        for row in alive.sort("bytes", descending=True).head(LARGEST).to_dicts()
    )


def by_category(alive: pl.DataFrame) -> dict[str, int]:
    """Bytes of every category; a name the schema does not know counts as unknown."""
    found = dict.fromkeys(CATEGORIES, 0)
    for category, size in alive.group_by("category").agg(pl.col("bytes").sum()).iter_rows():
        found[category if category in found else "unknown"] += int(size)
    return found


def _modules_at_peak(alive: pl.DataFrame, whole: int) -> tuple[ModuleMemory, ...]:
    parts: dict[str, list[CategoryBytes]] = {}
    tensors: dict[str, int] = {}
    grouped = alive.group_by("owner", "category").agg(pl.col("bytes").sum(), pl.len().alias("tensors"))
    for owner, category, size, many in grouped.sort("owner", "category").iter_rows():
        parts.setdefault(owner, []).append(CategoryBytes(name=category or "unknown", bytes=int(size)))
        tensors[owner] = tensors.get(owner, 0) + int(many)
    found = []
    for owner, categories in parts.items():
        size = sum(one.bytes for one in categories)
        share = size / whole if whole else 0.0
        found.append(
            ModuleMemory(
                path=owner, bytes=size, share=share, tensors=tensors[owner], categories=tuple(categories)
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.bytes, row.path)))


def _peak_moment(ledger: Ledger, event: int, window: Window | None) -> PeakMoment:
    row = ledger.blocks.row(int(ledger.block_of[event]), named=True)
    time_ns = int(ledger.time_ns[event])
    before = row["alloc_ns"] is None
    return PeakMoment(
        step=window.step if window else row["step"],
        mode=window.mode if window else None,
        time_ns=None if before else time_ns,
        ms_into_step=(time_ns - window.start_ns) / 1e6 if window and not before else None,
        phase=row["phase"],
        stage=row["stage"],
        operator=row["operator"],
        direction=row["direction"],
        module=row["module"] or ("(model)" if row["module"] == "" else None),
    )


def _levels_by(ledger: Ledger, windows: list[Window], column: str) -> tuple[NamedPeak, ...]:
    """The highest level reached right after an event of each phase or stage, in order of appearance."""
    inside = np.zeros(len(ledger.level), dtype=bool)
    for window in [window for window in windows if window.mode != "warmup"] or windows:
        inside[window.first : window.last] = True
    released = np.arange(len(ledger.level)) != ledger.begin_at[ledger.block_of]
    at_begin = ledger.blocks[column].gather(pl.Series(ledger.block_of))
    at_end = ledger.blocks["free_phase"].gather(pl.Series(ledger.block_of)) if column == "phase" else None
    events = pl.DataFrame(
        {
            "name": at_begin,
            "end": at_end if at_end is not None else at_begin,
            "released": released,
            "level": ledger.level,
            "inside": inside,
        }
    )
    if column == "stage":  # a release says nothing about the stage that runs
        events = events.filter(~pl.col("released"))
    named = events.filter(pl.col("inside")).with_columns(
        pl.when(pl.col("released")).then(pl.col("end")).otherwise(pl.col("name")).alias("name")
    )
    grouped = named.drop_nulls("name").group_by("name", maintain_order=True).agg(pl.col("level").max())
    return tuple(NamedPeak(name=name, peak_bytes=int(level)) for name, level in grouped.iter_rows() if name)


def step_peaks(ledger: Ledger, windows: list[Window]) -> StepPeaks:
    """The peaks of the measured steps: how many, their middle, how far apart."""
    measured = [window for window in windows if window.mode not in ("warmup", "unfinished")]
    peaks = [int(ledger.level[peak_event(ledger, window.first, window.last)]) for window in measured]
    if not peaks:
        return StepPeaks(n=0, why="no measured step ended")
    values = [float(peak) for peak in peaks]
    return StepPeaks(
        n=len(peaks),
        p50_bytes=float(np.median(peaks)),
        ci95_bytes=median_interval(values),
        spread=robust_spread(values),
        lowest_bytes=min(peaks),
        highest_bytes=max(peaks),
        peaks=tuple(
            StepPeak(step=window.step, peak_bytes=peak) for window, peak in zip(measured, peaks, strict=True)
        ),
    )


def _other_devices(blocks: pl.DataFrame, device: str) -> tuple[OtherDevice, ...]:
    names = sorted({str(name) for name in blocks["device"].unique().to_list()} - {device})
    ledgers = ((name, ledger_of(blocks.filter(pl.col("device") == name))) for name in names)
    return tuple(OtherDevice(device=name, peak_bytes=int(ledger.level.max())) for name, ledger in ledgers)
