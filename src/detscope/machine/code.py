"""Which code a run was made of: the commit of the folder it started in, and a mark of its tracked files.

Git's own files are read: starting git would be a child process inside of the script that is measured.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ENTRY = struct.Struct(">10I20sH")  # times, place, mode, owner, size, hash, flags: format 2 and 3 of an index
_LARGEST_INDEX = 20_000_000  # bytes: about 150,000 files
_LARGEST_FILE = 5_000_000  # bytes: code is smaller; data that changed is told by its size alone


class TrackedFile(NamedTuple):
    """A file as git last saw it."""

    path: str
    mtime_s: int
    mtime_ns: int
    size: int
    blob: bytes


def describe_code(folder: Path | None = None) -> dict[str, str | None]:
    """The commit, and a mark that is the same for the same tracked files; None where git does not know."""
    nothing: dict[str, str | None] = {"commit": None, "files": None}
    try:
        place = (folder or Path.cwd()).resolve()
        root = next((one for one in (place, *place.parents) if (one / ".git").exists()), None)
        if root is None:
            return nothing
        git = _find_git_folder(root)
        return {"commit": _read_commit(git), "files": _mark_files(root, git / "index")}
    except (OSError, ValueError, struct.error):
        return nothing


def _find_git_folder(root: Path) -> Path:
    """A worktree has a file in the place of the folder."""
    git = root / ".git"
    if git.is_dir():
        return git
    told = git.read_text(encoding="utf-8").strip()
    return (root / told.removeprefix("gitdir:").strip()).resolve()


def _read_commit(git: Path) -> str | None:
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head or None
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    common = (git / shared.read_text(encoding="utf-8").strip()).resolve() if shared.is_file() else git
    for place in (git / name, common / name):
        if place.is_file():
            return place.read_text(encoding="utf-8").strip()
    packed = common / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.split(" ")[0] for line in lines if line.endswith(f" {name}")), None)


def _mark_files(root: Path, index: Path) -> str | None:
    """Of the contents of all tracked files; only those that were touched since git looked are read."""
    if not index.is_file() or index.stat().st_size > _LARGEST_INDEX:
        return None
    mark = hashlib.sha256()
    for file in read_index(index.read_bytes()):
        mark.update(file.path.encode() + b"\0" + _current_blob(root, file))
    return mark.hexdigest()[:12]


def _current_blob(root: Path, file: TrackedFile) -> bytes:
    try:
        found = (root / file.path).lstat()
        same_time = found.st_mtime_ns == file.mtime_s * 10**9 + file.mtime_ns
        if same_time and found.st_size & 0xFFFFFFFF == file.size:
            return file.blob
        if found.st_size > _LARGEST_FILE:
            return str(found.st_size).encode()
        content = (root / file.path).read_bytes()
    except OSError:
        return b"gone"
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()


def read_index(content: bytes) -> Iterator[TrackedFile]:
    """Entries of git's index, of the formats 2 and 3."""
    signature, version, count = struct.unpack_from(">4sII", content)
    if signature != b"DIRC" or version not in (2, 3):
        raise ValueError(f"an index of format {version} is not read")
    at = 12
    for _ in range(count):
        fields = _ENTRY.unpack_from(content, at)
        mtime_s, mtime_ns, size, blob, flags = fields[2], fields[3], fields[9], fields[10], fields[11]
        begin = at + _ENTRY.size + (2 if version == 3 and flags & 0x4000 else 0)
        end = content.index(b"\0", begin)
        yield TrackedFile(content[begin:end].decode(errors="replace"), mtime_s, mtime_ns, size, blob)
        at += (end - at + 8) // 8 * 8  # one to eight zeros follow the name
