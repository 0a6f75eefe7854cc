"""What is in a folder of runs: one row each, with the figures that a person looks for first."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.memory.account import memory_account, pass_memory
from detscope.analyze.stats import percent
from detscope.analyze.step.steps import (
    PHASES,
    TypicalSteps,
    choose_typical_steps,
    images_per_second,
    phase_figures,
)
from detscope.analyze.verdict import DATA_BOUND_SHARE
from detscope.errors import DetscopeError, UsageError
from detscope.runs.folder import run_folders, short_names
from detscope.runs.reader import Run, load_run

SORT_KEYS = ("time", "model", "device", "status", "verb", "ms")


class RunEntry(Figure, frozen=True, kw_only=True):
    """One run of a folder; what it does not say is None."""

    name: str  # of its folder
    id: str  # short, and taken by every verb that takes a run
    path: str  # of its folder
    time: str  # when it began, as its name says: 20261115T101500Z
    verb: str | None = None  # that recorded it
    model: str | None = None  # its name
    device: str | None = None  # it ran on
    batch_size: int | None = None  # images per step
    precision: str | None = None  # fp32, bf16, ...
    ms: float | None = None  # median step or pass, on the host's clock
    images_per_s: float | None = None  # of all measured steps
    stability: str | None = None  # stable, unstable, error, too few
    peak_bytes: float | None = None  # of allocated memory, where it was recorded
    process_peak_bytes: float | None = None  # resident memory of the process, highest sample
    verdict: str | None = None  # in few words: what takes most of the step
    status: str  # ok, partial, failed, ...; damaged: run.json cannot be read
    reason: str | None = None  # of a status other than ok


def list_runs(
    parent: Path,
    *,
    model: str | None = None,
    device: str | None = None,
    since: str | None = None,
    sort: str = "time",
) -> list[RunEntry]:
    """Runs of a folder that fit the filters, the newest first; damaged ones are listed with their reason."""
    if sort not in SORT_KEYS:
        raise UsageError(f"--sort {sort!r} is not one of {', '.join(SORT_KEYS)}", "try --sort time")
    first_time = ""
    if since is not None:
        first_time = since.replace("-", "").replace(":", "")
        try:
            datetime.fromisoformat(since)
        except ValueError as error:
            raise UsageError(f"--since {since!r} is not a date", "for example --since 2026-11-15") from error
    folders = run_folders(parent)
    ids = short_names(folder.name for folder in folders)
    found = [
        entry
        for entry in (
            _read_entry(folder, ids[folder.name])
            for folder in folders
            if folder.name.split("-")[0] >= first_time
        )
        if (not model or model in str(entry.model)) and (not device or str(entry.device).startswith(device))
    ]
    newest = sorted(found, key=lambda entry: (entry.time, entry.name), reverse=True)
    if sort == "time":
        return newest
    if sort == "ms":
        return sorted(newest, key=lambda entry: float("inf") if entry.ms is None else entry.ms)
    return sorted(newest, key=lambda entry: str(getattr(entry, sort)))


def _read_entry(folder: Path, short: str) -> RunEntry:
    name, path, time = folder.name, str(folder), folder.name.split("-")[0]
    try:
        run = load_run(folder)
    except DetscopeError as error:
        return RunEntry(name=name, id=short, path=path, time=time, status="damaged", reason=error.message)
    info = run.info
    figures: dict[str, Any] = {}
    with suppress(DetscopeError, pl.exceptions.PolarsError):  # a table that is damaged leaves figures out
        figures = _read_figures(run)
    return RunEntry(
        name=name,
        id=short,
        path=path,
        time=time,
        status=run.status,
        model=(info.get("model") or {}).get("name"),
        verb=info.get("verb"),
        device=info.get("device"),
        batch_size=info.get("batch_size"),
        precision=info.get("precision"),
        reason=info.get("reason"),
        **figures,
    )


def _read_figures(run: Run) -> dict[str, Any]:
    """The figures of the first screen that need the tables of steps alone: a list is to come at once."""
    steps = run.table("steps")
    if steps.is_empty():
        return {"peak_bytes": _read_peak(run), "process_peak_bytes": _read_process_peak(run)}
    typical = choose_typical_steps(steps, find_slow_start=run.info.get("verb") != "infer")
    return {
        "ms": typical.p50_ms,
        "images_per_s": images_per_second(steps, run.table("content"), typical),
        "stability": typical.steadiness.verdict if typical.measured else None,
        "peak_bytes": _read_peak(run),
        "process_peak_bytes": _read_process_peak(run),
        "verdict": _tell_in_few_words(steps, typical),
    }


def _read_peak(run: Run) -> float | None:
    if run.info.get("verb") == "infer":
        told = pass_memory(run.info.get("memory"))
        return None if told is None else told.peak_bytes
    account = memory_account(run)
    return None if account is None else account.peak_bytes


def _read_process_peak(run: Run) -> float | None:
    telemetry = run.table("telemetry")
    own = telemetry.filter((pl.col("source") == "process") & (pl.col("metric") == "rss_bytes"))
    most = own["value"].max()
    return float(most) if isinstance(most, int | float) else None


def _tell_in_few_words(steps: pl.DataFrame, typical: TypicalSteps) -> str | None:
    shares = {phase.name: phase.share for phase in phase_figures(steps, typical) if phase.name in PHASES}
    if not shares:
        return None
    if shares.get("data", 0.0) >= DATA_BOUND_SHARE:
        return f"data wait {percent(shares['data'])}"
    largest = max(shares, key=lambda name: shares[name])
    return f"{largest} {percent(shares[largest])}"
