"""Every image of a data set opened and decoded, in several processes at once; nothing is written."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from detscope.data.contract import Progress
from detscope.data.images.decoding import ImageError, read_image_file, size_differs, verify_image
from detscope.errors import InputError

_CHUNK = 32


@dataclass(frozen=True)
class ToLook:
    """An image to look at and the size that its annotations were made for."""

    file_name: str
    width: int | None
    height: int | None


@dataclass(frozen=True)
class Look:
    """What an image file turned out to be."""

    file_name: str
    problem: str | None = None
    width: int | None = None
    height: int | None = None
    file_format: str = ""
    mode: str = ""
    turned: bool = False  # by its EXIF orientation
    size_bytes: int = 0
    digest: str = ""


def look_at(folder: str, image: ToLook) -> Look:
    """Read, hash and decode one image."""
    path = Path(folder) / image.file_name
    digest, size_bytes = "", 0
    try:
        raw = read_image_file(path)
        digest, size_bytes = hashlib.blake2b(raw, digest_size=16).hexdigest(), len(raw)
        facts = verify_image(raw, str(path))
        shown, stored = (facts.width, facts.height), (facts.stored_width, facts.stored_height)
        annotated = (image.width, image.height)
        if None not in annotated and annotated not in (shown, stored):
            raise size_differs(str(path), shown, annotated)
    except ImageError as error:
        reason = error.message.removeprefix(f"{path}: ")
        return Look(image.file_name, reason, size_bytes=size_bytes, digest=digest)
    return Look(
        image.file_name, None, *shown, facts.file_format, facts.mode, shown != stored, size_bytes, digest
    )


def look_at_all(
    folder: Path, images: Sequence[ToLook], workers: int | None = None, progress: Progress | None = None
) -> list[Look]:
    """Look at every image; a few are looked at in this process, many in several."""
    count = _cores() if workers is None else workers
    looks: list[Look] = []
    for look in _looks(str(folder), images, count):
        looks.append(look)
        if progress is not None and (len(looks) % 16 == 0 or len(looks) == len(images)):
            progress("opening images", len(looks), len(images))
    return looks


def _looks(folder: str, images: Sequence[ToLook], workers: int) -> Iterator[Look]:
    work = partial(look_at, folder)
    if workers < 2 or len(images) < 4 * _CHUNK:
        yield from map(work, images)
        return
    try:
        with ProcessPoolExecutor(workers, _context()) as pool:
            yield from pool.map(work, images, chunksize=_CHUNK)
    except BrokenProcessPool:
        raise InputError(
            "a process that decoded images died", "some image crashes the decoder or fills the memory"
        ) from None


def _context() -> multiprocessing.context.BaseContext:
    """Forking is quick, but not beside torch's threads."""
    quick = "torch" not in sys.modules and "fork" in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if quick else "spawn")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
