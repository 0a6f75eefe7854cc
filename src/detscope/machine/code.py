"""Which code a run was made of: the commit of the folder it started in, and a mark of what differs."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

_SECONDS = 2.0  # a slow disk must not hold up a run


def describe_code(folder: Path | None = None) -> dict[str, str | None]:
    """The commit and a short mark of uncommitted changes to tracked files; None where git does not know."""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "changes": None}
    changes = _ask_git(folder, "diff", "HEAD", "--no-ext-diff", "--no-color")
    mark = hashlib.sha256(changes).hexdigest()[:12] if changes else None
    return {"commit": commit.decode(errors="replace").strip(), "changes": mark}


def _ask_git(folder: Path | None, *words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
