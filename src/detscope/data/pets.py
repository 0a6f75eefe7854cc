"""Oxford-IIIT Pet (Parkhi, Vedaldi, Zisserman, Jawahar, 2012): one cat or dog per image, 37 breeds.

Boxes and masks come from the trimaps: 1 is the animal, 2 the background, 3 a band around the outline
that was left unclassified. Only 1 counts: the band lies half on the background, and with it boxes
would be some pixels too wide on every side. A trimap without a pixel of 1 gives an image without
boxes, noted as a problem; a box of size zero cannot arise.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detscope.data.coco_annotations import Annotations, ImageRecord, ReadOptions
from detscope.data.coco_layout import CocoLayoutDataset, with_annotations
from detscope.data.contract import Problem, Progress
from detscope.data.extract import extract_archive
from detscope.data.fetch import RemoteFile, fetch
from detscope.data.folders import build_folder_once, require_free_disk
from detscope.data.images import ImageError, read_label_image
from detscope.data.registry import OpenRequest
from detscope.data.segmentation import Segmentation
from detscope.errors import InputError, UsageError

PUBLISHER_URL = "https://www.robots.ox.ac.uk/~vgg/data/pets/data"
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
    base = os.environ.get(MIRROR_VARIABLE, PUBLISHER_URL).rstrip("/")
    return PetsSource(
        RemoteFile(
            f"{base}/images.tar.gz",
            "images.tar.gz",
            "sha256:67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
            791_918_971,
        ),
        RemoteFile(
            f"{base}/annotations.tar.gz",
            "annotations.tar.gz",
            "sha256:52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
            19_173_078,
        ),
    )


def open_pets(request: OpenRequest, source: PetsSource | None = None) -> CocoLayoutDataset:
    """Open Oxford-IIIT Pet, fetching it first where it is not there yet."""
    if request.need_keypoints:
        raise UsageError(
            "data set pets has no keypoints, which this model needs", 'use data.name = "synthetic"'
        )
    settings = request.settings
    folder = prepare_pets(Path(settings.root), source or publisher(), request.progress)
    options = ReadOptions(request.need_masks, skip_bad=settings.on_bad_data == "skip", limit=settings.images)
    lines = _read_split(folder / "annotations" / _SPLIT_FILES[request.split])
    annotations = _annotate(
        folder / "annotations" / "trimaps", lines, settings.pet_classes == "one", options, request.progress
    )
    return with_annotations("pets", folder / "images", annotations, options, progress=request.progress)


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


def _annotate(
    trimaps: Path, lines: list[_Line], one_class: bool, options: ReadOptions, progress: Progress | None
) -> Annotations:
    breeds = dict(sorted({line.breed_id: line.breed for line in lines}.items()))
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
    count = int(foreground.any())
    return ImageRecord(
        image_id=image_id,
        file_name=f"{line.image}.jpg",
        width=width,
        height=height,
        boxes=np.array([box_around(foreground)] * count, dtype=np.float32).reshape(-1, 4),
        labels=np.full(count, label, dtype=np.int64),
        areas=np.full(count, foreground.sum(), dtype=np.float32),
        crowd=np.zeros(count, dtype=np.int64),
        annotation_ids=(image_id,) * count,
        segmentations=(_run_lengths(foreground),) * count if need_masks else None,
        keypoints=None,
    )


def box_around(foreground: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """The box (x1, y1, x2, y2) around all true pixels, outer edges included; all zero without any."""
    columns, rows = np.flatnonzero(foreground.any(axis=0)), np.flatnonzero(foreground.any(axis=1))
    if not len(columns):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _run_lengths(foreground: npt.NDArray[np.bool_]) -> Segmentation:
    from pycocotools import mask as coco_mask

    height, width = foreground.shape
    encoded = coco_mask.encode(np.asfortranarray(foreground, dtype=np.uint8))
    return Segmentation(run_lengths=encoded["counts"], height=height, width=width)
