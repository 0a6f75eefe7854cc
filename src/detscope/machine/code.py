"""Which code a run was made of: the commit of the folder it started in, and a mark of its tracked files.

Git's own files are read: starting git would be a child process inside of the script that is measured.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LARGEST_ENTRY = 300  # bytes, on average: sixty and a path
_ENTRY = struct.Struct(">10I20sH")  # times, place, mode, owner, size, hash, flags: format 2 and 3 of an index
# a script waits while this is done: beyond these the mark is not known, the commit still is
_MOST_FILES = 20_000  # each is looked at: a tenth of a second on a disk, far more on a file server
_MOST_READ_BYTES = 20_000_000  # of files that were touched since git looked; of a copied tree that is all
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
        commit = _read_commit(git)
    except (OSError, ValueError):
        return nothing
    try:
        return {"commit": commit, "files": _mark_files(root, git / "index")}
    except (OSError, ValueError, struct.error):  # an index of another format, or half of one
        return {"commit": commit, "files": None}


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
    if not index.is_file() or index.stat().st_size > _MOST_FILES * _LARGEST_ENTRY:
        return None
    mark, left_bytes = hashlib.sha256(), _MOST_READ_BYTES
    for number, file in enumerate(read_index(index.read_bytes())):
        blob, read_bytes = _current_blob(root, file)
        left_bytes -= read_bytes
        if left_bytes < 0 or number >= _MOST_FILES:
            return None
        mark.update(file.path.encode() + b"\0" + blob)
    return mark.hexdigest()[:12]


def _current_blob(root: Path, file: TrackedFile) -> tuple[bytes, int]:
    """What git would call the file's content, and how much had to be read to know it."""
    path = root / file.path
    try:
        found = path.lstat()
        same_time = found.st_mtime_ns == file.mtime_s * 10**9 + file.mtime_ns
        if same_time and found.st_size & 0xFFFFFFFF == file.size:
            return file.blob, 0
        if stat.S_ISLNK(found.st_mode):
            content = os.fsencode(path.readlink())
        elif not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            return b"no file", 0
        elif found.st_size > _LARGEST_FILE:
            return str(found.st_size).encode(), 0
        else:
            content = path.read_bytes()
    except OSError:
        return b"gone", 0
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return blob.digest(), len(content)


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
