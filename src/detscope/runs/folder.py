"""Run folders: `runs/<UTC time>-<verb>-<model>-<4 hex>/`, with `runs/latest` pointing at the newest."""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from detscope.errors import InputError
from detscope.runs.atomic import storage_error

MOST_CANDIDATES = 8  # that are named where several runs fit
MAKE_A_RUN = "make one: detscope train tiny_fasterrcnn --steps 20"  # a hint
_ID_LENGTH = 4
_ID = re.compile(r"[0-9a-f]{4}")  # that ends the name of a run


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


def short_name(folder: Path, parent: Path = Path("runs")) -> str:
    """The shortest that `find_run` takes for this run from the current folder: `a2ec`, else its path."""
    try:
        if folder.resolve().parent != parent.resolve():
            return _path_from_here(folder)
        beside = [path.name for path in run_folders(parent)]
    except (OSError, InputError):
        return str(folder)
    return short_names([*beside, folder.name])[folder.name]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """For each name of a run its last part, or if others share it its first part, or all of it."""
    distinct = set(names)
    heads = Counter(name.split("-")[0] for name in distinct)
    ends = Counter(end for name in distinct for end in {name[:_ID_LENGTH], name[-_ID_LENGTH:]})
    found = {}
    for name in distinct:
        head, tail = name.split("-")[0], name.split("-")[-1]
        alone = _ID.fullmatch(tail) and ends[tail] == 1
        found[name] = tail if alone else head if heads[head] == 1 and head else name
    return found


def _path_from_here(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the current folder is gone
        return str(folder)


def find_run(name: str | None, parent: Path = Path("runs")) -> Path:
    """A run by path, name, beginning or end of a name, or the latest."""
    if not name:
        name = "latest"
    for candidate in (Path(name), parent / name):
        if os.path.lexists(candidate / "run.json"):
            return candidate.resolve()
    return _find_named(name, parent)


def find_run_inside(name: str, parent: Path) -> Path:
    """A run of this folder by name, beginning or end of a name, or the latest; others are refused.

    For those who ask from afar: no path is taken, and no link is followed that leads out of the folder.
    """
    refused = InputError(
        f"{name!r} leads out of the folder of runs", "give a run's id or name, as list_runs tells them"
    )
    if name in (".", "..") or not name.isprintable() or any(char in name for char in "/\\:"):
        raise refused
    inside = parent / (name or "latest")
    found = (
        inside.resolve() if os.path.lexists(inside / "run.json") else _find_named(name or "latest", parent)
    )
    if leads_outside(found, parent):
        raise refused
    return found


def leads_outside(folder: Path, parent: Path) -> bool:
    """Whether a run lies elsewhere than beneath this folder, or a link of its own leads out of it."""
    root = parent.resolve()
    if not folder.resolve().is_relative_to(root):
        return True
    links = (path for path in folder.rglob("*") if path.is_symlink())
    return not all(path.resolve().is_relative_to(root) for path in links)


def _find_named(name: str, parent: Path) -> Path:
    matches = runs_named(name, parent)
    if len(matches) == 1:
        return matches[0].resolve()
    if len(matches) > 1:
        names = ", ".join(match.name for match in matches[:MOST_CANDIDATES])
        more = f" and {len(matches) - MOST_CANDIDATES} more" if len(matches) > MOST_CANDIDATES else ""
        raise InputError(f"{name!r} fits {len(matches)} runs: {names}{more}", "give more of the name")
    if name == "latest":  # the link is not everywhere, and what it named may have been removed
        there = run_folders(parent) if parent.is_dir() else []
        if not there:
            raise InputError(f"no run in {parent}", MAKE_A_RUN)
        return max(there, key=lambda path: (path.name.split("-")[0], path.name)).resolve()
    if os.path.isdir(name):  # noqa: PTH112  (a Path raises where the name is too long)
        raise InputError(
            f"{name} is not a run: it has no run.json", "give a folder that a measuring verb wrote"
        )
    raise InputError(f"no run named {name!r} in {parent}", "list them: detscope runs")


def runs_named(name: str, parent: Path = Path("runs")) -> list[Path]:
    """Runs whose name begins or ends with this."""
    if not name or not parent.is_dir():
        return []
    return [path for path in run_folders(parent) if path.name.startswith(name) or path.name.endswith(name)]
