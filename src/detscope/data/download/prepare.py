"""From a name to a folder that can be opened: fetched, checked, unpacked, put where people expect it.

Downloads are resumed where they broke, checked before they count, and whole or not there. Written on urllib
because pooch, the usual choice, starts a broken download again from zero. Failures: no connection is a fault
of the machine (exit 4, what was fetched is kept and resumed); content that is not what was promised is bad
input (exit 3, the file is removed).
"""

from __future__ import annotations

import filecmp
import hashlib
import http.client
import json
import os
import shutil
import ssl
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detscope.data.contract import Progress, track_progress
from detscope.data.download.extract import extract_archive, lock_path, report_write_errors, require_free_disk
from detscope.errors import InputError, MachineError
from detscope.web import check_address, hide_secrets, open_url

CHUNK_BYTES = 2**20
TIMEOUT_S = 30.0
# How often in a row a connection may break without bringing a byte, and how often in all.
FRUITLESS_ATTEMPTS = 4
ALL_ATTEMPTS = 100
RECORD = "first-use.json"  # of what was trusted on first use
_NETWORK_ERRORS = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError)
_BUSY = (408, 425, 429, 500, 502, 503, 504)

# A data set may lie in a folder of another name, and COCO's images one folder deeper.
_OTHER_FOLDERS = {"coco": ("coco", ".", "COCO", "coco2017")}
_OTHER_PROOFS = {"train2017": ("images/train2017",), "val2017": ("images/val2017",)}


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch and how to know that it is the right one."""

    url: str
    name: str
    checksum: str | None = None  # "sha256:..." or "md5:..."; None: the publisher gives none
    size_bytes: int | None = None


class ConnectionBroken(Exception):
    """The connection ended early; what came is kept."""


def fetch_file(
    remote: RemoteFile,
    folder: Path,
    *,
    progress: Progress | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """Bring a file into `folder` unless it is there and right; returns its path."""
    check_address(remote.url)
    target = folder / remote.name
    with report_write_errors(target), lock_path(target):
        if target.is_file():
            if _find_flaw(target, remote) is None:
                return target
            target.unlink()
        download = _Download(remote, target.with_name(f"{target.name}.part"), progress)
        download.run_attempts(pause)
        flaw = _find_flaw(download.partial, remote)
        if flaw is not None:
            download.forget_partial()
            raise InputError(
                f"{remote.name} from {hide_secrets(remote.url)} {flaw}",
                "it was removed; run again to fetch it anew",
            )
        download.partial.rename(target)
        download.validator.unlink(missing_ok=True)
    return target


def compute_checksum(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


class _Download:
    """What is there of a file, beside the validator that tells whether the server still has the same one."""

    def __init__(self, remote: RemoteFile, partial: Path, progress: Progress | None) -> None:
        self.remote = remote
        self.partial = partial
        self.progress = progress
        self.validator = partial.with_name(f"{partial.name}.etag")

    def count_bytes(self) -> int:
        return self.partial.stat().st_size if self.partial.is_file() else 0

    def forget_partial(self) -> None:
        self.partial.unlink(missing_ok=True)
        self.validator.unlink(missing_ok=True)

    def run_attempts(self, pause: Callable[[float], None]) -> None:
        """Connect until the file is whole, or until it brings nothing any more."""
        fruitless, reason, address = 0, "", hide_secrets(self.remote.url)
        for _ in range(ALL_ATTEMPTS):
            before_bytes = self.count_bytes()
            try:
                return self.resume_once()
            except urllib.error.HTTPError as error:
                error.close()  # it is the open answer of the server
                reason = f"the server answered {error.code} {hide_secrets(error.reason)}"
                if error.code not in _BUSY:
                    hint = "check the address; a mirror may still have the file"
                    raise InputError(f"{address}: {reason}", hint) from error
            except (ConnectionBroken, OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and not isinstance(error, _NETWORK_ERRORS):
                    raise  # the disk, not the connection
                reason = hide_secrets(getattr(error, "reason", "") or error) or type(error).__name__
            fruitless = 0 if self.count_bytes() > before_bytes else fruitless + 1
            if fruitless >= FRUITLESS_ATTEMPTS:
                break
            pause(0.25 * 2**fruitless)
        target = self.partial.with_name(self.remote.name)
        raise MachineError(
            f"cannot download {address}: {reason} ({self.count_bytes()} bytes so far)",
            f"check the connection and run again to go on, or put the file at {target}",
        )

    def resume_once(self) -> None:
        """One connection: everything from the end of the partial file on."""
        have_bytes = self.count_bytes()
        if self.remote.size_bytes is not None:
            if have_bytes == self.remote.size_bytes:
                return
            require_free_disk(self.partial.parent, self.remote.size_bytes - have_bytes, self.remote.name)
        headers = {"User-Agent": "detscope", "Accept-Encoding": "identity"}
        if have_bytes:
            headers["Range"] = f"bytes={have_bytes}-"
            if self.validator.is_file():  # a file that has changed is sent from its beginning
                headers["If-Range"] = self.validator.read_text()
        try:
            response = open_url(self.remote.url, TIMEOUT_S, headers)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not have_bytes:
                raise
            # Nothing lies beyond what we have: it is whole, or it belongs to another file.
            if error.headers.get("Content-Range") != f"bytes */{have_bytes}":
                self.forget_partial()
                raise ConnectionBroken("the partial file does not fit") from error
            return
        with response:
            self.receive_rest(response, have_bytes)

    def receive_rest(self, response: http.client.HTTPResponse, have_bytes: int) -> None:
        """Append what comes, or begin anew where the server does."""
        remote, headers = self.remote, response.headers
        resumed = response.status == 206
        if resumed and not (headers.get("Content-Range") or "").startswith(f"bytes {have_bytes}-"):
            self.forget_partial()
            raise ConnectionBroken("the server sent another part than asked for")
        done_bytes = have_bytes if resumed else 0
        length = headers.get("Content-Length", "")
        total_bytes = done_bytes + int(length) if length.isascii() and length.isdigit() else remote.size_bytes
        if total_bytes is not None:
            require_free_disk(self.partial.parent, total_bytes - done_bytes, remote.name)
        etag = headers.get("ETag") or ""
        validator = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
        if validator:
            self.validator.write_text(validator)
        else:
            self.validator.unlink(missing_ok=True)
        with self.partial.open("ab" if resumed else "wb") as file:
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                done_bytes += len(chunk)
                if remote.size_bytes is not None and done_bytes > remote.size_bytes:
                    break  # more than promised: judged, and removed, as a whole
                if self.progress is not None:
                    self.progress(f"downloading {remote.name}", done_bytes, total_bytes)
            file.flush()
            os.fsync(file.fileno())
        if total_bytes is not None and done_bytes < total_bytes:
            raise ConnectionBroken(f"the connection ended after {done_bytes} of {total_bytes} bytes")


def _find_flaw(path: Path, remote: RemoteFile) -> str | None:
    """What is wrong with a fetched file, or None."""
    size_bytes = path.stat().st_size
    if remote.checksum is not None:
        algorithm, _, expected = remote.checksum.partition(":")
        actual = compute_checksum(path, algorithm)
        if actual != expected:
            what = _find_wrong_kind(path) or f"is not the file that was published ({size_bytes} bytes)"
            return f"{what}: {algorithm} expected {expected}, actual {actual}"
    if remote.size_bytes is not None and size_bytes != remote.size_bytes:
        return f"has {size_bytes} bytes, expected {remote.size_bytes}"
    return _find_wrong_kind(path)


def _find_wrong_kind(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if not start:
        return "is empty"
    if start.startswith((b"<!doctype html", b"<html")):
        return "is an HTML page"
    return None


def recall_first_use(remote: RemoteFile, folder: Path) -> RemoteFile:
    """The file with the checksum and size it had when it was fetched from this address before.

    Files without a published checksum are trusted on first use: they must stay what they were then.
    """
    known = _read_first_uses(folder / RECORD).get(hide_secrets(remote.url))
    if known is None:
        return remote
    return replace(remote, checksum=known["checksum"], size_bytes=known["size_bytes"])


def record_first_use(remote: RemoteFile, path: Path, folder: Path) -> None:
    """Write down what came from an address, unless that is known already."""
    record, address = folder / RECORD, hide_secrets(remote.url)
    content = _read_first_uses(record)
    if address in content:
        return
    checksum = f"sha256:{compute_checksum(path, 'sha256')}"
    content[address] = {"checksum": checksum, "size_bytes": path.stat().st_size}
    partial = record.with_name(f".{record.name}.partial")
    partial.write_text(json.dumps(content, indent=2, sort_keys=True))
    partial.replace(record)


def _read_first_uses(record: Path) -> dict[str, Any]:
    if not record.is_file():
        return {}
    try:
        content = json.loads(record.read_bytes())
        if not all({"checksum", "size_bytes"} <= set(entry) for entry in content.values()):
            raise ValueError("an entry lacks its checksum")
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"{record}: not a record of first uses: {error}", "remove it to trust the next downloads anew"
        ) from error
    assert isinstance(content, dict)
    return content


@dataclass(frozen=True)
class Archive:
    """One file of a publisher; `proof` is what lies below the data set's folder once it is unpacked."""

    url: str
    checksum: str
    size_bytes: int
    most_members: int  # files and folders, with room to spare: a mirror's archive may hold some more
    proof: str  # unpacked last, so that it is there when everything is
    folder: str  # below the root; the archive's members lie below it
    strip: str = ""  # leading folder of the members that `folder` stands for

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]

    def locate_at(self, mirror: str | None) -> RemoteFile:
        """The file at its publisher's (None), or in the folder of a mirror."""
        url = self.url if mirror is None else f"{mirror.rstrip('/')}/{self.name}"
        return RemoteFile(url, self.name, self.checksum, self.size_bytes)


@dataclass(frozen=True)
class Collection:
    """What `detscope data prepare NAME` brings, and how to use it afterwards."""

    name: str
    description: str
    archives: tuple[Archive, ...]
    use_as: str  # for --data
    licence: str


@dataclass(frozen=True)
class PreparedFolder:
    """Where a data set is, and what had to be done for it."""

    name: str
    folder: Path
    fetched: tuple[str, ...]  # archives that were brought
    found: tuple[str, ...]  # archives whose content was there


def prepare_collection(
    collection: Collection,
    root: Path,
    *,
    mirror: str | None = None,
    trust_mirror: bool = False,
    progress: Progress | None = None,
) -> PreparedFolder:
    """Bring a data set under `root` unless it is there; a killed one is gone on with.

    `mirror` replaces the publisher's address, up to the file name. With `trust_mirror` its files may
    differ from the publisher's (a part of a data set, say): then they are trusted on first use.
    """
    folder = _find_folder(collection, root)
    missing = [archive for archive in collection.archives if not _is_there(archive, folder)]
    found = tuple(archive.name for archive in collection.archives if archive not in missing)
    if missing:
        with report_write_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        if not trust_mirror:
            parts = (root / "downloads" / f"{one.name}{end}" for one in missing for end in ("", ".part"))
            have_bytes = sum(path.stat().st_size for path in parts if path.is_file())
            sizes = [archive.size_bytes for archive in missing]
            # What is unpacked is removed at once: room for everything unpacked and the largest archive.
            need_bytes = max(0, sum(sizes) + max(sizes) - have_bytes)
            require_free_disk(root, need_bytes, f"preparing {collection.name}")
        for archive in missing:
            _bring_archive(archive, root, folder, mirror, trust_mirror, progress)
    return PreparedFolder(collection.name, folder, tuple(archive.name for archive in missing), found)


def find_prepared(collection: Collection, root: Path) -> Path | None:
    """The folder of a data set that is there as a whole."""
    folder = _find_folder(collection, root)
    return folder if all(_is_there(archive, folder) for archive in collection.archives) else None


def count_download_bytes(collection: Collection) -> int:
    """How much has to be fetched where nothing is there."""
    return sum(archive.size_bytes for archive in collection.archives)


def _find_folder(collection: Collection, root: Path) -> Path:
    """The usual folder, or another one that holds some of it already."""
    usual = collection.archives[0].folder
    for name in _OTHER_FOLDERS.get(usual, (usual,)):
        folder = root / name if name != "." else root
        if any(_is_there(archive, folder) for archive in collection.archives):
            return folder
    return root / usual


def _is_there(archive: Archive, folder: Path) -> bool:
    return any((folder / proof).exists() for proof in (archive.proof, *_OTHER_PROOFS.get(archive.proof, ())))


def _bring_archive(
    archive: Archive,
    root: Path,
    folder: Path,
    mirror: str | None,
    trust_mirror: bool,
    progress: Progress | None,
) -> None:
    downloads = root / "downloads"
    remote = archive.locate_at(mirror)
    if trust_mirror:
        remote = recall_first_use(replace(remote, checksum=None, size_bytes=None), downloads)
    staging = root / f".{archive.name}.unpacked"
    with report_write_errors(folder), lock_path(downloads / "prepare"):
        if _is_there(archive, folder):  # another process brought it meanwhile
            return
        if not staging.is_dir():
            path = fetch_file(remote, downloads, progress=progress)
            if trust_mirror:
                record_first_use(remote, path, downloads)
            extract_archive(path, staging, most_members=archive.most_members, progress=progress)
        _place_files(staging, archive, folder, progress)
        shutil.rmtree(staging)
        (downloads / archive.name).unlink(missing_ok=True)


def _place_files(staging: Path, archive: Archive, folder: Path, progress: Progress | None) -> None:
    """Move what was unpacked to its place; the proof of completeness goes last."""
    source = staging / archive.strip if archive.strip else staging
    proof = source / archive.proof
    if not proof.exists():
        raise InputError(
            f"{archive.name}: unpacks without {archive.strip}/{archive.proof}".replace("//", "/"),
            f"it is another archive than expected; look into {staging} and remove it to fetch anew",
        )
    files = [path for path in sorted(source.rglob("*")) if not path.is_dir()]
    if proof.is_dir() and not (folder / archive.proof).exists():
        files = [path for path in files if not path.is_relative_to(proof)]
    elif proof in files:
        files.remove(proof)
        files.append(proof)
    for path in track_progress(files, len(files), f"placing {archive.name}", progress, every=100):
        _move_file(path, folder / path.relative_to(source))
    if proof.is_dir():
        _move_file(proof, folder / archive.proof)


def _move_file(path: Path, target: Path) -> None:
    """Move a file or a whole folder; a file that is there must be the same, and nothing is overwritten."""
    if target.exists():
        if target.is_dir() or not filecmp.cmp(path, target, shallow=False):
            raise InputError(f"{target} is there and differs", "move it away, or choose another --root")
        path.unlink()
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
