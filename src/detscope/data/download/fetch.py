"""Downloads: resumed where they broke, checked before they count, whole or not there.

Written on urllib because pooch, the usual choice, starts a broken download again from zero.
Failures: no connection is a fault of the machine (exit 4, what was fetched is kept and resumed);
content that is not what was promised is bad input (exit 3, the file is removed).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detscope.data.contract import Progress
from detscope.data.download.folders import lock_path, report_write_errors, require_free_disk
from detscope.errors import InputError, MachineError
from detscope.web import check_address, hide_secrets, open_url

CHUNK_BYTES = 2**20
TIMEOUT_S = 30.0
# How often in a row a connection may break without bringing a byte, and how often in all.
FRUITLESS_ATTEMPTS = 4
ALL_ATTEMPTS = 100
RECORD = "first-use.json"  # of what was trusted on first use
_BUSY = (408, 425, 429, 500, 502, 503, 504)


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
        partial = target.with_name(f"{target.name}.part")
        _download_file(remote, partial, progress, pause)
        flaw = _find_flaw(partial, remote)
        if flaw is not None:
            _forget_partial(partial)
            raise InputError(
                f"{remote.name} from {hide_secrets(remote.url)} {flaw}",
                "it was removed; run again to fetch it anew",
            )
        partial.rename(target)
        _validator_file(partial).unlink(missing_ok=True)
    return target


def compute_checksum(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _download_file(
    remote: RemoteFile, partial: Path, progress: Progress | None, pause: Callable[[float], None]
) -> None:
    fruitless, reason = 0, ""
    for _ in range(ALL_ATTEMPTS):
        before_bytes = _count_bytes(partial)
        try:
            return _resume_download(remote, partial, progress)
        except urllib.error.HTTPError as error:
            error.close()  # it is the open answer of the server
            reason = f"the server answered {error.code} {hide_secrets(error.reason)}"
            if error.code not in _BUSY:
                raise InputError(
                    f"{hide_secrets(remote.url)}: {reason}",
                    "check the address; a mirror may still have the file",
                ) from error
        except (ConnectionBroken, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and not _is_network_error(error):
                raise  # the disk, not the connection
            reason = hide_secrets(getattr(error, "reason", "") or error) or type(error).__name__
        fruitless = 0 if _count_bytes(partial) > before_bytes else fruitless + 1
        if fruitless >= FRUITLESS_ATTEMPTS:
            break
        pause(0.25 * 2**fruitless)
    raise MachineError(
        f"cannot download {hide_secrets(remote.url)}: {reason} ({_count_bytes(partial)} bytes so far)",
        f"check the connection and run again to go on, or put the file at {partial.with_name(remote.name)}",
    )


def _is_network_error(error: OSError) -> bool:
    return isinstance(error, urllib.error.URLError | ConnectionError | TimeoutError | ssl.SSLError)


def _resume_download(remote: RemoteFile, partial: Path, progress: Progress | None) -> None:
    """One connection: everything from the end of the partial file on."""
    have_bytes = _count_bytes(partial)
    if remote.size_bytes is not None:
        if have_bytes == remote.size_bytes:
            return
        require_free_disk(partial.parent, remote.size_bytes - have_bytes, remote.name)
    headers = {"User-Agent": "detscope", "Accept-Encoding": "identity"}
    if have_bytes:
        headers["Range"] = f"bytes={have_bytes}-"
        if _validator_file(partial).is_file():
            headers["If-Range"] = _validator_file(
                partial
            ).read_text()  # a file that has changed is sent from its beginning
    try:
        response = open_url(remote.url, TIMEOUT_S, headers)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have_bytes:
            raise
        # Nothing lies beyond what we have: it is whole, or it belongs to another file.
        if error.headers.get("Content-Range") != f"bytes */{have_bytes}":
            _forget_partial(partial)
            raise ConnectionBroken("the partial file does not fit") from error
        return
    with response:
        _receive_rest(response, remote, partial, have_bytes, progress)


def _receive_rest(
    response: http.client.HTTPResponse,
    remote: RemoteFile,
    partial: Path,
    have_bytes: int,
    progress: Progress | None,
) -> None:
    resumed = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(
        f"bytes {have_bytes}-"
    )
    if response.status == 206 and not resumed:
        _forget_partial(partial)
        raise ConnectionBroken("the server sent another part than asked for")
    done_bytes = have_bytes if resumed else 0
    length = response.headers.get("Content-Length", "")
    total_bytes = done_bytes + int(length) if length.isascii() and length.isdigit() else remote.size_bytes
    if total_bytes is not None:
        require_free_disk(partial.parent, total_bytes - done_bytes, remote.name)
    _keep_validator(partial, response)
    with partial.open("ab" if resumed else "wb") as file:
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            done_bytes += len(chunk)
            if remote.size_bytes is not None and done_bytes > remote.size_bytes:
                break  # more than promised: judged, and removed, as a whole
            if progress is not None:
                progress(f"downloading {remote.name}", done_bytes, total_bytes)
        file.flush()
        os.fsync(file.fileno())
    if total_bytes is not None and done_bytes < total_bytes:
        raise ConnectionBroken(f"the connection ended after {done_bytes} of {total_bytes} bytes")


def _find_flaw(path: Path, remote: RemoteFile) -> str | None:
    """What is wrong with a fetched file, or None."""
    size_bytes = _count_bytes(path)
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


def _count_bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _validator_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.etag")


def _keep_validator(partial: Path, response: http.client.HTTPResponse) -> None:
    etag = response.headers.get("ETag") or ""
    validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
    if validator:
        _validator_file(partial).write_text(validator)
    else:
        _validator_file(partial).unlink(missing_ok=True)


def _forget_partial(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _validator_file(partial).unlink(missing_ok=True)


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
