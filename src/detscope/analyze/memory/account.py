"""What the peak of allocated memory is made of: category, module, tensor, phase; levels never mixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.advice.memory.rules import memory_advice
from detscope.analyze.memory.blocks import (
    CATEGORIES,
    Ledger,
    Window,
    ledger_of,
    owners,
    peak_event,
    windows_of,
)
from detscope.analyze.memory.changes import figures_of_changes
from detscope.analyze.memory.levels import level_figures
from detscope.analyze.memory.oom import oom_figures
from detscope.analyze.memory.slope import slope_figures
from detscope.analyze.stats import median_interval, robust_spread
from detscope.runs.reader import Run

LARGEST = 10
UNKNOWN_PEAK = "true peak: "  # how an import says that its file began late
# what the recorder itself says of its account
RECORDED = ("definition", "steps", "live_bytes", "unknown_frees", "unknown_free_bytes", "unseen_frees")
WHAT = "bytes of live tensors on {device}, tensors that share storage counted once"


def memory_figures(run: Run) -> dict[str, Any] | None:
    """The memory account of a run; None where none was recorded."""
    blocks = run.table("memory")
    if not blocks.height:
        changes = run.table("memory_changes")
        return figures_of_changes(changes) if changes.height else None
    told = run.info.get("memory") or {}
    device = main_device(run, blocks)
    ledger = ledger_of(blocks.filter(pl.col("device") == device))
    windows = windows_of(ledger, run.table("steps"))
    event, window = find_peak(ledger, windows)
    figures: dict[str, Any] = {
        "what": WHAT.format(device=device),
        "device": device,
        "peak_bytes": int(ledger.level[event]),
        "peak_is": _certainty(run),
        "at": _moment(ledger, event, window),
        **peak_figures(ledger, event),
        "phases": _levels_by(ledger, windows, "phase"),
        "stages": _levels_by(ledger, windows, "stage"),
        "steps": step_peaks(ledger, windows),
        "other_devices": _other_devices(blocks, device),
        "levels": level_figures(run.table("memory_levels"), ledger, windows, device),
        "slope": slope_figures(ledger, event, run.info.get("batch_size")),
        "recorded": {key: told[key] for key in RECORDED if key in told},
        "blocks": ledger.blocks.height,
    }
    if str(run.status).startswith("oom") or run.info.get("oom"):
        figures["oom"] = oom_figures(run, ledger, windows, figures)
    if run.info.get("memory_tried"):
        figures["tried"] = run.info["memory_tried"]
    whole = window is not None and window.mode != "unfinished"  # of half a step no replay can tell anything
    figures["advice"] = memory_advice(run, ledger, window, event, figures) if window and whole else []
    return figures


def _certainty(run: Run) -> str:
    """Whether the peak was seen, or is only what a file that began late can tell."""
    reasons = [str(text) for text in run.info.get("cannot_tell") or []]
    late = next((text for text in reasons if text.startswith(UNKNOWN_PEAK)), None)
    return "measured" if late is None else f"a lower bound: {late.removeprefix(UNKNOWN_PEAK)}"


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


def peak_figures(ledger: Ledger, event: int) -> dict[str, Any]:
    """What was alive at a moment: categories, modules, the largest tensors."""
    alive = owners(ledger.blocks.filter(pl.Series(ledger.alive(event))))
    whole = int(ledger.level[event])
    categories = by_category(alive)
    return {
        "categories": categories,
        "unknown_share": categories["unknown"] / whole if whole else None,
        "modules": _module_rows(alive, whole),
        "largest": [
            {key: row[key] for key in ("bytes", "shape", "dtype", "operator", "category", "name", "stack")}
            | {"module": row["owner"], "phase": row["phase"], "stage": row["stage"]}
            for row in alive.sort("bytes", descending=True).head(LARGEST).to_dicts()
        ],
    }


def by_category(alive: pl.DataFrame) -> dict[str, int]:
    """Bytes of every category; a name the schema does not know counts as unknown."""
    found = dict.fromkeys(CATEGORIES, 0)
    for category, size in alive.group_by("category").agg(pl.col("bytes").sum()).iter_rows():
        found[category if category in found else "unknown"] += int(size)
    return found


def _module_rows(alive: pl.DataFrame, whole: int) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    grouped = alive.group_by("owner", "category").agg(pl.col("bytes").sum(), pl.len().alias("tensors"))
    for owner, category, size, tensors in grouped.sort("owner", "category").iter_rows():
        row = rows.setdefault(
            owner, {"path": owner, "bytes": 0, "share": 0.0, "tensors": 0, "categories": {}}
        )
        row["bytes"] += int(size)
        row["tensors"] += int(tensors)
        row["categories"][category or "unknown"] = int(size)
    for row in rows.values():
        row["share"] = row["bytes"] / whole if whole else 0.0
    return sorted(rows.values(), key=lambda row: (-row["bytes"], row["path"]))


def _moment(ledger: Ledger, event: int, window: Window | None) -> dict[str, Any]:
    row = ledger.blocks.row(int(ledger.block_of[event]), named=True)
    time_ns = int(ledger.time_ns[event])
    before = row["alloc_ns"] is None
    return {
        "step": window.step if window else row["step"],
        "mode": window.mode if window else None,
        "time_ns": None if before else time_ns,
        "ms_into_step": (time_ns - window.start_ns) / 1e6 if window and not before else None,
        **{key: row[key] for key in ("phase", "stage", "operator", "direction")},
        "module": row["module"] or ("(model)" if row["module"] == "" else None),
    }


def _levels_by(ledger: Ledger, windows: list[Window], column: str) -> list[dict[str, Any]]:
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
    return [{"name": name, "peak_bytes": int(level)} for name, level in grouped.iter_rows() if name]


def step_peaks(ledger: Ledger, windows: list[Window]) -> dict[str, Any]:
    """The peaks of the measured steps: how many, their middle, how far apart."""
    measured = [window for window in windows if window.mode not in ("warmup", "unfinished")]
    peaks = [int(ledger.level[peak_event(ledger, window.first, window.last)]) for window in measured]
    if not peaks:
        return {"n": 0, "p50_bytes": None, "why": "no measured step ended"}
    interval = median_interval([float(peak) for peak in peaks])
    return {
        "n": len(peaks),
        "p50_bytes": float(np.median(peaks)),
        "ci95_bytes": [interval.low, interval.high] if interval else None,
        "spread": robust_spread([float(peak) for peak in peaks]),
        "lowest_bytes": min(peaks),
        "highest_bytes": max(peaks),
        "peaks": [
            {"step": window.step, "peak_bytes": peak} for window, peak in zip(measured, peaks, strict=True)
        ],
    }


def _other_devices(blocks: pl.DataFrame, device: str) -> list[dict[str, Any]]:
    found = []
    for name in sorted({str(name) for name in blocks["device"].unique().to_list()} - {device}):
        ledger = ledger_of(blocks.filter(pl.col("device") == name))
        found.append({"device": name, "peak_bytes": int(ledger.level.max())})
    return found
