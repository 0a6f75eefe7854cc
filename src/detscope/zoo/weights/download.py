"""Fetching published weights: checked against the hash in their name, never half-written.

Written by hand because publishers give only the first digits of a hash, which pooch cannot check,
and torch.hub has no timeout.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import socket
import tempfile
import threading
import urllib.error
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from detscope.errors import DetscopeError, InputError
from detscope.web import check_address, hide_secrets, open_url
from detscope.zoo.weights.files import compute_sha256

CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[a-z]+$")

_log = logging.getLogger(__name__)


class DownloadFailed(Exception):
    """The publisher could not be reached, or did not deliver; says why in one line."""


@dataclass(frozen=True)
class Published:
    """Weights somebody offers for download."""

    url: str

    @property
    def file_name(self) -> str:
        """Last part of the address."""
        return Path(urllib.parse.urlsplit(self.url).path).name

    @property
    def hash_prefix(self) -> str | None:
        """The first digits of the sha256, as publishers write them into the file's name."""
        found = _HASH_IN_NAME.search(self.file_name)
        return found.group(1) if found else None

    def at_server(self, base_url: str | None) -> Published:
        """The same file on another server."""
        return self if base_url is None else Published(f"{base_url.rstrip('/')}/{self.file_name}")


def cache_folder(cache_dir: str | None) -> Path:
    """Where downloads are kept: the given folder, or torch hub's."""
    if cache_dir is not None:
        return Path(cache_dir)
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints"


def check_hash(path: Path, published: Published, shown_as: str | None = None) -> None:
    """Remove a damaged download and raise InputError with expected and actual checksum."""
    expected = published.hash_prefix
    if expected is None:
        return
    actual = compute_sha256(path)
    if actual.startswith(expected):
        return
    size_bytes = path.stat().st_size
    path.unlink()
    raise InputError(
        f"downloaded weights {shown_as or path} are damaged ({size_bytes} bytes): "
        f"expected sha256 {expected}..., actual {actual}",
        "the file was removed; run again to fetch it anew, or use --weights none",
    )


def download_weights(published: Published, folder: Path) -> Path:
    """Fetch into `folder` and check; raises DownloadFailed, or InputError when what came is damaged."""
    target = folder / published.file_name
    _log.info("downloading %s", published.file_name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, partial_name = tempfile.mkstemp(dir=folder, prefix=published.file_name, suffix=".part")
    except OSError as problem:
        raise DownloadFailed(f"cannot write to {folder}: {problem.strerror}") from problem
    partial = Path(partial_name)
    try:
        with os.fdopen(handle, "wb") as file:
            _fetch_into(file, published.url)
        check_hash(partial, published, shown_as=published.file_name)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _fetch_into(file: IO[bytes], url: str) -> None:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        check_address(url)
        _resolve_in_time(host)
        with open_url(url, CONNECT_TIMEOUT_S) as answer:
            # the short timeout is for connecting; a slow server that did answer gets more patience
            connection = getattr(getattr(getattr(answer, "fp", None), "raw", None), "_sock", None)
            if isinstance(connection, socket.socket):
                connection.settimeout(_READ_TIMEOUT_S)
            while piece := answer.read(_PIECE_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except DetscopeError as problem:
        raise DownloadFailed(problem.message) from problem
    except urllib.error.HTTPError as problem:
        problem.close()  # it is the open answer of the server
        raise DownloadFailed(f"{host} answered {problem.code} {hide_secrets(problem.reason)}") from problem
    except urllib.error.URLError as problem:
        raise DownloadFailed(f"{host} cannot be reached: {hide_secrets(problem.reason)}") from problem
    except (OSError, http.client.HTTPException) as problem:
        words = hide_secrets(problem) or type(problem).__name__
        raise DownloadFailed(f"download from {host} broke off: {words}") from problem


def _resolve_in_time(host: str) -> None:
    """Name resolution obeys no socket timeout and can take half a minute without a network."""
    problems: list[OSError] = []

    def resolve() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError as problem:
            problems.append(problem)

    resolver = threading.Thread(target=resolve, daemon=True)
    resolver.start()
    resolver.join(CONNECT_TIMEOUT_S)
    if resolver.is_alive():
        raise DownloadFailed(f"{host} cannot be reached: no answer from name resolution")
    if problems:
        raise DownloadFailed(f"{host} cannot be reached: {problems[0].strerror or problems[0]}")
