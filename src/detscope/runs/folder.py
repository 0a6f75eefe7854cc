"""Run folders: `runs/<UTC time>-<verb>-<model>-<4 hex>/`, with `runs/latest` pointing at the newest."""

from __future__ import annotations

import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from detscope.errors import InputError
from detscope.runs.atomic import storage_error


def create_run_folder(parent: Path, verb: str, model: str) -> Path:
    """Make a new, empty run folder; never one that exists, also when two runs start in the same second."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", model).strip("._")[-48:] or "model"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            folder = parent / f"{stamp}-{verb}-{label}-{secrets.token_hex(2)}"
            try:
                folder.mkdir()
            except FileExistsError:
                if not folder.is_dir():
                    raise
                continue
            break
        (folder / "parts").mkdir()
    except OSError as error:
        raise storage_error(parent, error) from error
    return folder


def point_latest_at(folder: Path) -> None:
    """Let `latest` beside the run name it; a file system without links goes without."""
    link = folder.parent / "latest"
    temporary = folder.parent / f".latest-{os.getpid()}-{secrets.token_hex(2)}"
    try:
        temporary.symlink_to(folder.name)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)


def run_folders(parent: Path) -> list[Path]:
    """Folders that hold a run.json, of whatever content; not the links to them."""
    try:
        inside = sorted(parent.iterdir())
        return [path for path in inside if not path.is_symlink() and os.path.lexists(path / "run.json")]
    except OSError as error:
        raise InputError(
            f"{parent} cannot be listed: {error.strerror}", "give the folder that holds run folders"
        ) from error


def find_run(name: str | None, parent: Path = Path("runs")) -> Path:
    """A run by path, name, beginning of a name, or the latest."""
    if not name:
        name = "latest"
    for candidate in (Path(name), parent / name):
        if os.path.lexists(candidate / "run.json"):
            return candidate.resolve()
    matches = [path for path in run_folders(parent) if path.name.startswith(name)] if parent.is_dir() else []
    if len(matches) == 1:
        return matches[0].resolve()
    if len(matches) > 1:
        names = ", ".join(match.name for match in matches[:4])
        raise InputError(f"{name!r} fits {len(matches)} runs: {names}", "give more of the name")
    if name == "latest":
        raise InputError(f"no run in {parent}", "make one: detscope train tiny_fasterrcnn --steps 20")
    if os.path.isdir(name):  # noqa: PTH112  (a Path raises where the name is too long)
        raise InputError(
            f"{name} is not a run: it has no run.json", "give a folder that a measuring verb wrote"
        )
    raise InputError(f"no run named {name!r} in {parent}", "list them: detscope runs")
