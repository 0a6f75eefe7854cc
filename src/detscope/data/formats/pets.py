"""Oxford-IIIT Pet (Parkhi, Vedaldi, Zisserman, Jawahar, 2012): one cat or dog per image, 37 breeds.

Boxes and masks come from the trimaps: 1 is the animal, 2 the background, 3 a band around the outline
that was left unclassified. Only 1 counts: the band lies half on the background, and with it boxes
would be some pixels too wide on every side. A trimap without a pixel of 1 gives an image without
boxes, noted as a problem; a box of size zero cannot arise.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detscope.data.annotations import Annotations, ObjectRecord, encode_mask, make_record
from detscope.data.contract import DatasetFormat, OpenRequest, Problem, Progress, track_progress
from detscope.data.dataset import FolderDataset, join_images
from detscope.data.download.extract import build_folder_once, extract_archive, require_free_disk
from detscope.data.download.prepare import Archive, Collection, RemoteFile, fetch_file
from detscope.data.images import ImageError, read_label_image
from detscope.errors import InputError, UsageError

PUBLISHER_URL = "https://www.robots.ox.ac.uk/~vgg/data/pets/data"
MIRROR_VARIABLE = "DETSCOPE_PETS_URL"
FOLDER = "oxford-iiit-pet"  # the name and layout that torchvision uses: its copies are found
FOREGROUND = 1
_SPLIT_FILES = {"train": "trainval.txt", "val": "test.txt"}
_ANNOTATIONS = Archive(
    f"{PUBLISHER_URL}/annotations.tar.gz",
    "sha256:52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
    19_173_078,
    most_members=60_000,
    proof="annotations/trainval.txt",
    folder=FOLDER,
)
_IMAGES = Archive(
    f"{PUBLISHER_URL}/images.tar.gz",
    "sha256:67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
    791_918_971,
    most_members=30_000,
    proof="images",
    folder=FOLDER,
)


class PetsSource(NamedTuple):
    """Where the two archives come from and what they must be."""

    images: RemoteFile
    annotations: RemoteFile


def find_source() -> PetsSource:
    """The publisher's archives, or the same files from the mirror named in DETSCOPE_PETS_URL."""
    base = os.environ.get(MIRROR_VARIABLE, PUBLISHER_URL).rstrip("/")
    return PetsSource(*(archive.locate_at(base) for archive in (_IMAGES, _ANNOTATIONS)))


def open_pets(request: OpenRequest, source: PetsSource | None = None) -> FolderDataset:
    """Open Oxford-IIIT Pet, fetching it first where it is not there yet."""
    _refuse_keypoints(request)
    folder = prepare_pets(Path(request.settings.root), source or find_source(), request.progress)
    return open_pets_folder(folder, request, "pets")


def open_pets_folder(folder: Path, request: OpenRequest, name: str) -> FolderDataset:
    """Open a folder in the layout of Oxford-IIIT Pet."""
    _refuse_keypoints(request)
    listed = folder / "annotations"
    rows = _read_split(listed / _SPLIT_FILES[request.split])
    both = [path for path in (listed / file for file in _SPLIT_FILES.values()) if path.is_file()]
    # breeds of both splits by number, so that labels mean the same in both
    images = {breed_id: image for path in both for image, breed_id in _read_split(path)}
    breeds = {
        breed_id: image.rpartition("_")[0].replace("_", " ").title()
        for breed_id, image in sorted(images.items())
    }
    return join_images(
        name, folder / "images", _read_trimaps(listed / "trimaps", rows, breeds, request), request
    )


def _refuse_keypoints(request: OpenRequest) -> None:
    if request.need_keypoints:
        raise UsageError(
            "data set pets has no keypoints, which this model needs", 'use data.name = "synthetic"'
        )


def prepare_pets(root: Path, source: PetsSource, progress: Progress | None = None) -> Path:
    """Fetch and unpack the data set under `root` unless it is there; returns its folder."""
    folder = root / FOLDER

    def build_pets(partial: Path) -> None:
        remotes = (source.annotations, source.images)
        require_free_disk(root, 2 * sum(remote.size_bytes or 0 for remote in remotes), "Oxford-IIIT Pet")
        downloads = root / "downloads" / FOLDER
        for remote, content in zip(remotes, ("annotations", "images"), strict=True):
            archive = fetch_file(remote, downloads, progress=progress)
            unpacked = extract_archive(archive, partial / f"unpacked-{content}", progress=progress)
            if not (unpacked / content).is_dir():
                raise InputError(
                    f"{archive.name}: has no folder {content!r}", "is it the archive of Oxford-IIIT Pet?"
                )
            (unpacked / content).rename(partial / content)
            shutil.rmtree(unpacked)
        for remote in remotes:
            (downloads / remote.name).unlink()

    def is_complete(made: Path) -> bool:
        listed = made / "annotations" / _SPLIT_FILES["train"]
        return (made / "images").is_dir() and is_pets(made) and listed.is_file()

    build_folder_once(folder, build_pets, is_complete, replace_incomplete=False)
    return folder


def is_pets(folder: Path) -> bool:
    """Whether a folder has trimaps."""
    return (folder / "annotations" / "trimaps").is_dir()


def _read_split(path: Path) -> list[tuple[str, int]]:
    """Names of images without their ending, and breeds by number from 1."""
    try:
        rows = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
        return [(Path(row[0]).name, int(row[1])) for row in rows]
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", "prepare it again: detscope data prepare pets"
        ) from error
    except (ValueError, IndexError) as error:
        raise InputError(
            f"{path}: not a list of `image breed species number`: {error}",
            "prepare it again: detscope data prepare pets",
        ) from error


def _read_trimaps(
    trimaps: Path, rows: list[tuple[str, int]], breeds: dict[int, str], request: OpenRequest
) -> Annotations:
    one_class = request.settings.pet_classes == "one"
    labels = {breed_id: 1 if one_class else label for label, breed_id in enumerate(breeds, start=1)}
    classes = ("pet",) if one_class else tuple(breeds.values())
    chosen = rows[: request.settings.images]
    records, problems = [], []
    numbered = track_progress(
        enumerate(chosen, start=1), len(chosen), "reading trimaps", request.progress, every=1
    )
    for number, (image, breed_id) in numbered:
        file_name = f"{image}.jpg"
        try:
            foreground = read_label_image(trimaps / f"{image}.png") == FOREGROUND
        except ImageError as error:
            if not request.skip_bad:
                raise
            problems.append(Problem(file_name, None, f"trimap: {error.message}", "dropped"))
            continue
        if not foreground.any():
            problems.append(Problem(file_name, None, "trimap without foreground", "noted"))
        height, width = foreground.shape
        objects = []
        if foreground.any():
            mask = encode_mask(foreground) if request.need_masks else None
            box, area = box_around(foreground), float(foreground.sum())
            objects = [ObjectRecord(box, labels[breed_id], area, number, segmentation=mask)]
        records.append(
            make_record(number, file_name, (width, height), objects, with_masks=request.need_masks)
        )
    category_ids = (1,) if one_class else tuple(breeds)
    return Annotations(("background", *classes), category_ids, tuple(records), tuple(problems))


def box_around(foreground: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """The box (x1, y1, x2, y2) around all true pixels, outer edges included; all zero without any."""
    columns, rows = np.flatnonzero(foreground.any(axis=0)), np.flatnonzero(foreground.any(axis=1))
    if not len(columns):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


_LISTED = (
    "Abyssinian, American Bulldog, American Pit Bull Terrier, Basset Hound, Beagle, Bengal, Birman, "
    "Bombay, Boxer, British Shorthair, Chihuahua, Egyptian Mau, English Cocker Spaniel, English Setter, "
    "German Shorthaired, Great Pyrenees, Havanese, Japanese Chin, Keeshond, Leonberger, Maine Coon, "
    "Miniature Pinscher, Newfoundland, Persian, Pomeranian, Pug, Ragdoll, Russian Blue, Saint Bernard, "
    "Samoyed, Scottish Terrier, Shiba Inu, Siamese, Sphynx, Staffordshire Bull Terrier, Wheaten Terrier, "
    "Yorkshire Terrier"
)

PART = DatasetFormat(
    "pets",
    "Oxford-IIIT Pet: 37 breeds, boxes from the trimaps",
    open_pets,
    open_pets_folder,
    is_pets,
    order=1,
    collections=(
        Collection(
            "pets", "Oxford-IIIT Pet: 37 breeds, trimaps", (_ANNOTATIONS, _IMAGES), "pets", "CC BY-SA 4.0"
        ),
    ),
    class_lists=(_LISTED.split(", "), ["pet"]),
)
