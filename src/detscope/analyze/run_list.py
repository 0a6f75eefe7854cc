"""What is in a folder of runs: one row each, read from run.json alone."""

from __future__ import annotations

from pathlib import Path

from detscope.analyze.figure import Figure
from detscope.errors import DetscopeError, UsageError
from detscope.runs.folder import run_folders
from detscope.runs.reader import load_run

SORT_KEYS = ("time", "model", "device", "status", "verb")


class RunEntry(Figure, frozen=True, kw_only=True):
    """One run of a folder; what its run.json does not say is None."""

    name: str  # of its folder
    path: str  # of its folder
    time: str  # when it began, as its name says: 20261115T101500Z
    verb: str | None = None  # that recorded it
    model: str | None = None  # its name
    device: str | None = None  # it ran on
    batch_size: int | None = None  # images per step
    precision: str | None = None  # fp32, bf16, ...
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
    """Runs of a folder that fit the filters; damaged ones are listed with their reason."""
    if sort not in SORT_KEYS:
        raise UsageError(f"--sort {sort!r} is not one of {', '.join(SORT_KEYS)}", "try --sort time")
    first_time = ""
    if since:
        first_time = since.replace("-", "").replace(":", "")
        if not first_time[:8].isdigit() or len(first_time[:8]) != 8:
            raise UsageError(f"--since {since!r} is not a date", "for example --since 2026-11-15")
    found = [
        entry
        for entry in map(_read_entry, run_folders(parent))
        if (not model or model in str(entry.model))
        and (not device or str(entry.device).startswith(device))
        and entry.time >= first_time
    ]
    return sorted(found, key=lambda entry: (str(getattr(entry, sort)), entry.name))


def _read_entry(folder: Path) -> RunEntry:
    name, path, time = folder.name, str(folder), folder.name.split("-")[0]
    try:
        run = load_run(folder)
    except DetscopeError as error:
        return RunEntry(name=name, path=path, time=time, status="damaged", reason=error.message)
    info = run.info
    return RunEntry(
        name=name,
        path=path,
        time=time,
        status=run.status,
        model=(info.get("model") or {}).get("name"),
        verb=info.get("verb"),
        device=info.get("device"),
        batch_size=info.get("batch_size"),
        precision=info.get("precision"),
        reason=info.get("reason"),
    )
