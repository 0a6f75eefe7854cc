"""Every image of a data set opened and decoded, in several processes at once; nothing is written."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from detscope.data.annotations.records import Size
from detscope.data.contract import Progress, track_progress
from detscope.data.images.decoding import ImageError, read_image_file, require_annotated_size, verify_image
from detscope.data.loading.loader import count_cores
from detscope.errors import InputError

_CHUNK = 32


@dataclass(frozen=True)
class ImageCheck:
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


def check_image(folder: str, image: tuple[str, Size]) -> ImageCheck:
    """Read, hash and decode one image; given are its name and the size its annotations were made for."""
    name, annotated = image
    path = Path(folder) / name
    digest, size_bytes = "", 0
    try:
        raw = read_image_file(path)
        digest, size_bytes = hashlib.blake2b(raw, digest_size=16).hexdigest(), len(raw)
        facts = verify_image(raw, str(path))
        require_annotated_size(facts, str(path), *annotated)
    except ImageError as error:
        reason = error.message.removeprefix(f"{path}: ")
        return ImageCheck(name, reason, size_bytes=size_bytes, digest=digest)
    turned = (facts.width, facts.height) != (facts.stored_width, facts.stored_height)
    return ImageCheck(
        name, None, facts.width, facts.height, facts.file_format, facts.mode, turned, size_bytes, digest
    )


def check_images(
    folder: Path,
    images: Sequence[tuple[str, Size]],
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[ImageCheck]:
    """Check every image; a few are looked at in this process, many in several."""
    checks = _run_checks(str(folder), images, count_cores() if workers is None else workers)
    return list(track_progress(checks, len(images), "opening images", progress))


def _run_checks(folder: str, images: Sequence[tuple[str, Size]], workers: int) -> Iterator[ImageCheck]:
    work = partial(check_image, folder)
    if workers < 2 or len(images) < 4 * _CHUNK:
        yield from map(work, images)
        return
    # forking is quick, but not beside torch's threads
    quick = "torch" not in sys.modules and "fork" in multiprocessing.get_all_start_methods()
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork" if quick else "spawn")) as pool:
            yield from pool.map(work, images, chunksize=_CHUNK)
    except BrokenProcessPool:
        raise InputError(
            "a process that decoded images died", "some image crashes the decoder or fills the memory"
        ) from None
