"""Rows of sweeps, and runs of `train` and `infer`, as measured steps: conditions, and what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from detscope.errors import InputError
from detscope.limits import read_csv_rows
from detscope.runs.reader import Run, load_run
from detscope.sweep.outcome import OUT_OF_MEMORY
from detscope.sweep.store import COLUMNS, read_rows

_OLDER = "older:"  # how the fingerprint begins of what was imported from files of the older toolflow
_SEEN_BY_EXPORT = {"network", "stage", "batch_size", "kind", "step_ms"}
UNKNOWN = "unknown"  # a condition of which a row says nothing: it may be any
_CELLS: dict[str, Callable[[str], Any]] = {"INTEGER": int, "REAL": float}
_TRUE = {"0": "no", "1": "yes"}
_STAGES = {"train": "training", "infer": "inference"}
RUN_FILE = "run.json"


@dataclass(frozen=True)
class MeasuredRow:
    """One measured step before its network is known layer by layer."""

    folder: Path  # where its network is looked for, and where the layers are kept
    network: str  # as the sweep or the run names it
    fingerprint: str
    stage: str
    batch: int
    image_size: int | None  # None: the network's own
    conditions: Mapping[str, str]  # what must be the same in all rows of a fit
    kind: str = "ok"
    latency_ms: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    process_bytes: float | None = None
    steps: int | None = None  # that were measured; None: the source does not say

    @property
    def ran_out(self) -> bool:
        """Whether memory was too small for it."""
        return self.kind in OUT_OF_MEMORY


def rows_of_store(path: Path) -> list[MeasuredRow]:
    """The accepted results of a sweep's store."""
    return [_make_row(row, path.parent) for row in read_rows(path)]


def rows_of_export(path: Path, text: str) -> list[MeasuredRow]:
    """The rows of a CSV that `detscope sweep export` wrote."""
    found = []
    for number, cells in enumerate(read_csv_rows(path, text.splitlines()), 2):
        try:
            row = {
                name: _CELLS.get(kind.split()[0], str)(cells[name]) if cells.get(name) else None
                for name, kind in COLUMNS.items()
            }
            facts = json.loads(cells.get("environment_facts") or "{}")
            found.append(_make_row({**row, "environment_facts": facts}, path.parent))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}, line {number}: {error!s:.80}", "export it again") from error
    return found


def is_export(header: list[str]) -> bool:
    """Whether the first line of a CSV is that of an export."""
    return set(header) >= _SEEN_BY_EXPORT


def _make_row(row: Mapping[str, Any], folder: Path) -> MeasuredRow:
    fingerprint, batch = str(row["fingerprint"]), int(row["batch_size"])
    if batch < 1:
        raise ValueError(f"a batch of {batch} images")
    older = fingerprint.startswith(_OLDER)
    # of failures the older files say only that; those of memory were taken until memory ran out
    failed_older = older and row["kind"] == "error" and row["variables"] == "memory"
    ok = row["kind"] == "ok"
    return MeasuredRow(
        folder,
        str(row["network"]),
        fingerprint,
        str(row["stage"]),
        batch,
        row["image_size"],
        _row_conditions(row),
        "oom_device" if failed_older else str(row["kind"]),
        **(_select_figures(row) if ok else {}),
        steps=row["steps"],
    )


def _select_figures(row: Mapping[str, Any]) -> dict[str, float | None]:
    """On a CPU the process is what counts, and torch holds back nothing; on a device, what it has in use."""
    on_cpu = row["reserved_bytes"] is None
    process = row["process_bytes"] if row["device_used_bytes"] is None else row["device_used_bytes"]
    return {
        "latency_ms": row["step_ms"],
        "latency_low_ms": row["step_low_ms"],
        "latency_high_ms": row["step_high_ms"],
        "allocated_bytes": row["allocated_bytes"],
        "reserved_bytes": row["allocated_bytes"] if on_cpu else row["reserved_bytes"],
        "process_bytes": process,
    }


def _row_conditions(row: Mapping[str, Any]) -> dict[str, str]:
    threads = row["torch_threads"] if row["torch_threads"] is not None else row["threads"]
    return {
        "device": str(row["device"]),
        "environment": environment_words(row["environment_facts"]),
        "precision": str(row["precision"] or "fp32"),
        "threads": UNKNOWN if threads is None else str(threads),
        "optimizer": str(row["optimizer"] or "sgd") if row["stage"] == "training" else "none",
        "channels_last": _TRUE.get(str(row["channels_last"] or 0), "yes"),
        "num_workers": str(row["num_workers"] or 0),
        "image_size": "own" if row["image_size"] is None else str(row["image_size"]),
    }


def environment_words(facts: Mapping[str, Any]) -> str:
    """What latencies depend on besides their configuration, in words; the same for sweeps and runs."""
    if "imported" in facts:
        return str(facts["imported"])
    packages = facts.get("packages") or {}
    gpus = facts.get("gpus") or []
    parts = [
        str(facts.get("processor") or "unknown processor"),
        f"{facts.get('cores', '?')} cores",
        *(str(name) for name in gpus),
        f"torch {packages.get('torch', '?')}",
    ]
    return ", ".join(parts)


def row_of_run(folder: Path) -> MeasuredRow | str:
    """The typical step of a run; words, where it says nothing about a network that can be built again."""
    from detscope.analyze.memory.account import memory_account
    from detscope.analyze.stats import median_interval

    run = load_run(folder)
    info = run.info
    name = str((info.get("model") or {}).get("name", ""))
    stage = _STAGES.get(str(info.get("verb")))
    if stage is None:
        return f"a network inside a script or a file ({name or 'unknown'}) cannot be built again"
    if run.status == "failed":
        reason = str(info.get("reason") or "no reason recorded")
        return f"it failed: {reason:.80}"
    if info.get("ranks") or (info.get("rank") or {}).get("ranks", 1) > 1:
        return "several ranks share its steps"
    if not info.get("batch_size"):
        return "it does not say its batch size"
    durations = _list_durations(run, stage)
    if not durations:
        return "no step was measured"
    settings = info.get("settings") or {}
    interval = median_interval(durations)
    memory = memory_account(run) if stage == "training" else None
    allocated = memory.peak_bytes if memory else None
    return MeasuredRow(
        folder.parent,
        name,
        f"name:{name}",
        stage,
        int(info["batch_size"]),
        _find_side(run),
        _run_conditions(info, settings, stage),
        "ok",
        latency_ms=median(durations),
        latency_low_ms=interval.low if interval else None,
        latency_high_ms=interval.high if interval else None,
        allocated_bytes=allocated,
        reserved_bytes=allocated if str(info.get("device")) == "cpu" else None,
    )


def _list_durations(run: Run, stage: str) -> list[float]:
    """Milliseconds of every measured step without waiting for data, which is not the network's."""
    from detscope.analyze.step.steps import choose_typical_steps

    steps = run.table("steps")
    measured = choose_typical_steps(steps, find_slow_start=stage == "training").measured
    chosen = steps.filter(pl.col("step").is_in(measured))
    whole = dict(chosen.filter(pl.col("phase") == "step").select("step", "wall_ns").iter_rows())
    for step, wall_ns in chosen.filter(pl.col("phase") == "data").select("step", "wall_ns").iter_rows():
        whole[step] -= wall_ns
    return [ns / 1e6 for ns in whole.values() if ns > 0]


def _find_side(run: Run) -> int | None:
    """The side of a square image of as many pixels as the network worked on."""
    content = run.table("content").filter(pl.col("images") > 0)
    pixels = (content["network_pixels"] / content["images"]).drop_nulls()
    middle = pixels.median()
    return round(sqrt(float(middle))) if isinstance(middle, float) and middle > 0 else None


def _run_conditions(info: dict[str, Any], settings: dict[str, Any], stage: str) -> dict[str, str]:
    part = settings.get("training" if stage == "training" else "inference") or {}
    facts = info.get("environment") or {}
    cpu = facts.get("cpu") or {}
    gpus = [str(one.get("name")) for one in (facts.get("gpus") or {}).get("devices") or []]
    words = {"processor": cpu.get("model"), "cores": cpu.get("usable_cores"), "gpus": gpus}
    return {
        "device": str(info.get("device")),
        "environment": environment_words(words | {"packages": facts.get("packages")}),
        "precision": str(info.get("precision") or "fp32"),
        "threads": str((facts.get("threads") or {}).get("torch", UNKNOWN)),
        "optimizer": str(part.get("optimizer", "sgd")) if stage == "training" else "none",
        "channels_last": "yes" if part.get("channels_last") else "no",
        "num_workers": "0",  # waiting for data is not counted
        "image_size": str((settings.get("model") or {}).get("image_size") or "own"),
    }
