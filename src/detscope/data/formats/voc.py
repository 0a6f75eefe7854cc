"""PASCAL VOC 2007 and 2012 as they are published, and anybody's own folder in VOC's layout.

Difficult objects are in the ground truth and not in what is trained on. Of VOC 2007 and 2012 the
usual parts are taken: trained on both trainval sets, evaluated on the test set of 2007; without it,
train and val of what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from detscope.data.annotations.records import (
    Annotations,
    BadAnnotationError,
    FoundObject,
    ImageRecord,
    Judge,
    ReadOptions,
    area_of,
    make_record,
)
from detscope.data.annotations.segmentation import Segmentation, encode_mask
from detscope.data.annotations.values import read_lines
from detscope.data.class_names import voc_names
from detscope.data.contract import Progress
from detscope.data.dataset import CocoLayoutDataset, size_of_file, with_annotations
from detscope.data.images.decoding import ImageError, read_label_image
from detscope.data.registry import OpenRequest
from detscope.data.voc_sets import VocItem, items_of_split, voc_folders
from detscope.data.voc_xml import VocFile, VocObject, VocXmlError, read_voc_xml
from detscope.errors import InputError, UsageError

FOLDER = "VOCdevkit"


@dataclass(frozen=True)
class _Read:
    item: VocItem
    file: VocFile


def open_voc(request: OpenRequest) -> CocoLayoutDataset:
    """Open PASCAL VOC from where it was prepared."""
    root = Path(request.settings.root)
    if not voc_folders(root):
        raise InputError(
            f"PASCAL VOC is not in {root}",
            "fetch it with `detscope data prepare voc`, or name its folder with --set data.root=DIR",
        )
    return open_voc_folder(root, request, "voc")


def open_voc_folder(folder: Path, request: OpenRequest, name: str) -> CocoLayoutDataset:
    """Open a folder in VOC's layout."""
    if request.need_keypoints:
        raise UsageError(f"data set {name} has no keypoints, which this model needs")
    chosen = items_of_split(folder, request.split, request.settings.held_out, masks=request.need_masks)
    options = replace(request.read_options(), limit=request.settings.images)
    judge = Judge(options.skip_bad)
    wanted = chosen.items[: options.limit]
    read = _read_all(wanted, folder, judge, request.progress)
    others = (*chosen.items[len(wanted) :], *chosen.others)
    classes = voc_names() if name == "voc" else _classes(folder, read, others)
    labels = {known: label for label, known in enumerate(classes, start=1)}
    records = tuple(
        _record(found, folder, number, labels, judge, options) for number, found in enumerate(read, start=1)
    )
    annotations = Annotations(
        ("background", *classes),
        tuple(range(1, len(classes) + 1)),
        records,
        tuple(judge.problems),
        notes=chosen.notes,
    )
    return with_annotations(
        name, folder, annotations, options, progress=request.progress, augmentation=request.augmentation()
    )


def _read_all(items: Sequence[VocItem], folder: Path, judge: Judge, progress: Progress | None) -> list[_Read]:
    found = []
    for done, item in enumerate(items, start=1):
        try:
            found.append(_Read(item, read_voc_xml(item.annotation)))
        except VocXmlError as error:
            judge.problem(_relative(item.annotation, folder), None, _reason(error, item.annotation))
        if progress is not None and (done % 16 == 0 or done == len(items)):
            progress("reading annotations", done, len(items))
    return found


def _classes(folder: Path, read: Sequence[_Read], others: Sequence[VocItem]) -> tuple[str, ...]:
    """Names as in classes.txt, else VOC's own if they will do, else those that occur in any split."""
    for listed in (folder / "classes.txt", folder / "labels.txt"):
        if listed.is_file():
            return tuple(read_lines(listed))
    names = {item.name for found in read for item in found.file.objects}
    for other in _read_all(others, folder, Judge(skip_bad=True), None):
        names |= {item.name for item in other.file.objects}
    names.discard("")
    known = voc_names()
    return known if names <= set(known) and names else tuple(sorted(names))


def _record(
    read: _Read, folder: Path, number: int, labels: dict[str, int], judge: Judge, options: ReadOptions
) -> ImageRecord:
    image = read.item.image_path(read.file.file_name)
    name = _relative(image, folder)
    size: tuple[int | None, int | None] = (read.file.width, read.file.height)
    if None in size:
        size = size_of_file(image)
    segmented = _Masks(read.item.mask) if options.need_masks else None
    objects = []
    for place, item in enumerate(read.file.objects, start=1):
        try:
            objects.append(_object(item, place, size, name, labels, judge, segmented))
        except (BadAnnotationError, ImageError) as error:
            judge.problem(name, place, str(error))
    return make_record(number, name, size, objects, with_masks=options.need_masks)


def _object(
    item: VocObject,
    place: int,
    size: tuple[int | None, int | None],
    image: str,
    labels: dict[str, int],
    judge: Judge,
    segmented: _Masks | None,
) -> FoundObject:
    if item.name not in labels:
        raise BadAnnotationError(f"unknown class {item.name[:40]!r}")
    if item.box is None:
        raise BadAnnotationError("box is not four numbers")
    box = judge.box(item.box, *size, image, place)
    mask = None if segmented is None else segmented.of(place)
    return FoundObject(
        box,
        labels[item.name],
        area_of(box),
        place,
        difficult=int(item.difficult),
        segmentation=mask,
    )


class _Masks:
    """Masks of one image: the n-th object of the annotation has the value n in the picture."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            raise UsageError("this data set has no masks, which this model needs", "choose another model")
        self._values = read_label_image(path)

    def of(self, place: int) -> Segmentation:
        """The mask of an object, counted from 1."""
        mask = self._values == place
        if not mask.any():
            raise BadAnnotationError("has no pixel in the picture of masks")
        return encode_mask(mask)


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _reason(error: InputError, path: Path) -> str:
    return error.message.removeprefix(str(path)).lstrip(":, ")
