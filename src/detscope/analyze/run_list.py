"""What is in a folder of runs: one row each, read from run.json alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from detscope.errors import DetscopeError, UsageError
from detscope.runs.folder import run_folders
from detscope.runs.reader import load_run

SORT_KEYS = ("time", "model", "device", "status", "verb")


def list_runs(
    parent: Path,
    *,
    model: str | None = None,
    device: str | None = None,
    since: str | None = None,
    sort: str = "time",
) -> list[dict[str, Any]]:
    """Runs of a folder that fit the filters; damaged ones are listed with their reason."""
    if sort not in SORT_KEYS:
        raise UsageError(f"--sort {sort!r} is not one of {', '.join(SORT_KEYS)}", "try --sort time")
    rows = [_row(folder) for folder in run_folders(parent)]
    keep: list[Callable[[dict[str, Any]], bool]] = []
    if model:
        keep.append(lambda row: model in str(row["model"]))
    if device:
        keep.append(lambda row: str(row["device"]).startswith(device))
    if since:
        digits = since.replace("-", "").replace(":", "")
        if not digits[:8].isdigit() or len(digits[:8]) != 8:
            raise UsageError(f"--since {since!r} is not a date", "for example --since 2026-11-15")
        keep.append(lambda row: str(row["time"]) >= digits)
    return sorted(
        (row for row in rows if all(test(row) for test in keep)),
        key=lambda row: (str(row[sort]), row["name"]),
    )


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"name": folder.name, "path": str(folder), "time": folder.name.split("-")[0]}
    row |= dict.fromkeys(("verb", "model", "device", "batch_size", "precision", "status", "reason"))
    try:
        run = load_run(folder)
    except DetscopeError as error:
        return {**row, "status": "damaged", "reason": error.message}
    info = run.info
    return {
        **row,
        **{key: info.get(key) for key in ("verb", "device", "batch_size", "precision", "reason")},
        "model": (info.get("model") or {}).get("name"),
        "status": run.status,
    }
