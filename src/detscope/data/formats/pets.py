"""Oxford-IIIT Pet (Parkhi, Vedaldi, Zisserman, Jawahar, 2012): one cat or dog per image, 37 breeds.

Boxes and masks come from the trimaps: 1 is the animal, 2 the background, 3 a band around the outline
that was left unclassified. Only 1 counts: the band lies half on the background, and with it boxes
would be some pixels too wide on every side. A trimap without a pixel of 1 gives an image without
boxes, noted as a problem; a box of size zero cannot arise.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detscope.data.annotations.records import Annotations, FoundObject, ImageRecord, ReadOptions, make_record
from detscope.data.annotations.segmentation import encode_mask
from detscope.data.catalog import PETS_URL, find_collection
from detscope.data.contract import Problem, Progress
from detscope.data.dataset import CocoLayoutDataset, with_annotations
from detscope.data.download.extract import extract_archive
from detscope.data.download.fetch import RemoteFile, fetch
from detscope.data.download.folders import build_folder_once, require_free_disk
from detscope.data.images.decoding import ImageError, read_label_image
from detscope.data.registry import OpenRequest
from detscope.errors import InputError, UsageError

PUBLISHER_URL = PETS_URL
MIRROR_VARIABLE = "DETSCOPE_PETS_URL"
FOLDER = "oxford-iiit-pet"  # the name and layout that torchvision uses: its copies are found
FOREGROUND = 1
_SPLIT_FILES = {"train": "trainval.txt", "val": "test.txt"}


@dataclass(frozen=True)
class PetsSource:
    """Where the two archives come from and what they must be."""

    images: RemoteFile
    annotations: RemoteFile


def publisher() -> PetsSource:
    """The publisher's archives, or the same files from the mirror named in DETSCOPE_PETS_URL."""
    annotations, images = find_collection("pets").archives
    base = os.environ.get(MIRROR_VARIABLE, PUBLISHER_URL).rstrip("/")
    return PetsSource(
        *(
            RemoteFile(f"{base}/{archive.name}", archive.name, archive.checksum, archive.size_bytes)
            for archive in (images, annotations)
        )
    )


def open_pets(request: OpenRequest, source: PetsSource | None = None) -> CocoLayoutDataset:
    """Open Oxford-IIIT Pet, fetching it first where it is not there yet."""
    _refuse_keypoints(request)
    folder = prepare_pets(Path(request.settings.root), source or publisher(), request.progress)
    return open_pets_folder(folder, request, "pets")


def open_pets_folder(folder: Path, request: OpenRequest, name: str) -> CocoLayoutDataset:
    """Open a folder in the layout of Oxford-IIIT Pet."""
    _refuse_keypoints(request)
    settings = request.settings
    options = replace(request.read_options(), limit=settings.images)
    listed = folder / "annotations"
    lines = _read_split(listed / _SPLIT_FILES[request.split])
    both = [listed / name for name in _SPLIT_FILES.values()]
    breeds = _breeds([line for path in both if path.is_file() for line in _read_split(path)])
    annotations = _annotate(
        listed / "trimaps", lines, breeds, settings.pet_classes == "one", options, request.progress
    )
    return with_annotations(
        name,
        folder / "images",
        annotations,
        options,
        progress=request.progress,
        augmentation=request.augmentation(),
    )


def _refuse_keypoints(request: OpenRequest) -> None:
    if request.need_keypoints:
        raise UsageError(
            "data set pets has no keypoints, which this model needs", 'use data.name = "synthetic"'
        )


def prepare_pets(root: Path, source: PetsSource, progress: Progress | None = None) -> Path:
    """Fetch and unpack the data set under `root` unless it is there; returns its folder."""
    folder = root / FOLDER

    def build(partial: Path) -> None:
        remotes = (source.annotations, source.images)
        require_free_disk(root, 2 * sum(remote.size_bytes or 0 for remote in remotes), "Oxford-IIIT Pet")
        downloads = root / "downloads" / FOLDER
        for remote, content in zip(remotes, ("annotations", "images"), strict=True):
            _unpack(fetch(remote, downloads, progress=progress), content, partial, progress)
        for remote in remotes:
            (downloads / remote.name).unlink()

    build_folder_once(folder, build, _is_complete, replace_incomplete=False)
    return folder


def _unpack(archive: Path, content: str, partial: Path, progress: Progress | None) -> None:
    unpacked = extract_archive(archive, partial / f"unpacked-{content}", progress=progress)
    if not (unpacked / content).is_dir():
        raise InputError(
            f"{archive.name}: has no folder {content!r}", "is it the archive of Oxford-IIIT Pet?"
        )
    (unpacked / content).rename(partial / content)
    shutil.rmtree(unpacked)


def _is_complete(folder: Path) -> bool:
    annotations = folder / "annotations"
    return (
        (folder / "images").is_dir()
        and (annotations / "trimaps").is_dir()
        and (annotations / _SPLIT_FILES["train"]).is_file()
    )


@dataclass(frozen=True)
class _Line:
    image: str  # file name without its ending
    breed_id: int  # from 1

    @property
    def breed(self) -> str:
        return self.image.rpartition("_")[0].replace("_", " ").title()


def _read_split(path: Path) -> list[_Line]:
    try:
        rows = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
        return [_Line(Path(row[0]).name, int(row[1])) for row in rows]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: not a list of `image breed species number`: {error}") from error


def _breeds(lines: list[_Line]) -> dict[int, str]:
    """Breeds of both splits by number, so that labels mean the same in both."""
    return dict(sorted({line.breed_id: line.breed for line in lines}.items()))


def _annotate(
    trimaps: Path,
    lines: list[_Line],
    breeds: dict[int, str],
    one_class: bool,
    options: ReadOptions,
    progress: Progress | None,
) -> Annotations:
    labels = {breed_id: 1 if one_class else label for label, breed_id in enumerate(breeds, start=1)}
    classes = ("background", "pet") if one_class else ("background", *breeds.values())
    chosen = lines[: options.limit]
    records, problems = [], []
    for number, line in enumerate(chosen, start=1):
        try:
            foreground = read_label_image(trimaps / f"{line.image}.png") == FOREGROUND
        except ImageError as error:
            if not options.skip_bad:
                raise
            problems.append(Problem(f"{line.image}.jpg", None, f"trimap: {error.message}", "dropped"))
        else:
            record = _record(line, number, labels[line.breed_id], foreground, options.need_masks)
            records.append(record)
            if not len(record.labels):
                problems.append(Problem(record.file_name, None, "trimap without foreground", "noted"))
        if progress is not None:
            progress("reading trimaps", number, len(chosen))
    category_ids = (1,) if one_class else tuple(breeds)
    return Annotations(classes, category_ids, tuple(records), tuple(problems))


def _record(
    line: _Line, image_id: int, label: int, foreground: npt.NDArray[np.bool_], need_masks: bool
) -> ImageRecord:
    height, width = foreground.shape
    objects = []
    if foreground.any():
        mask = encode_mask(foreground) if need_masks else None
        area = float(foreground.sum())
        objects = [FoundObject(box_around(foreground), label, area, image_id, segmentation=mask)]
    return make_record(image_id, f"{line.image}.jpg", (width, height), objects, with_masks=need_masks)


def box_around(foreground: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """The box (x1, y1, x2, y2) around all true pixels, outer edges included; all zero without any."""
    columns, rows = np.flatnonzero(foreground.any(axis=0)), np.flatnonzero(foreground.any(axis=1))
    if not len(columns):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
