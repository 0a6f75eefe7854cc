"""A data set of image files and records; what COCO, VOC, YOLO and Pets layouts are read into."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.data.annotations.records import Annotations, ImageRecord, ReadOptions
from detscope.data.annotations.values import leads_out
from detscope.data.coco_annotations import Wanted, read_annotations
from detscope.data.contract import GroundTruth, Problem, Progress, Target
from detscope.data.ground_truth import build_ground_truth
from detscope.data.images.decoding import (
    ImageError,
    decode_to_annotated_size,
    inspect_image,
    read_image_file,
    size_differs,
)
from detscope.data.loading.views import AS_IT_IS, Augmentation, ItemKey, resized, to_float
from detscope.data.targets import make_target
from detscope.errors import InputError, UsageError
from detscope.marks import region

if TYPE_CHECKING:
    import torch


@dataclass
class CocoLayoutDataset:
    """Images and targets; see `contract.DetectionDataset`."""

    name: str
    classes: tuple[str, ...]
    images_folder: Path
    records: tuple[ImageRecord, ...] = field(repr=False)
    category_ids: tuple[int, ...] = field(default=(), repr=False)
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    keypoint_swap: tuple[int, ...] = field(default=(), repr=False)
    keep_ignored: bool = False
    augmentation: Augmentation | None = None  # None: every image as it is

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: ItemKey) -> tuple[torch.Tensor, Target]:
        pixels, target = self.read(key)
        with region("transform"):
            return to_float(pixels), target

    def read(self, key: ItemKey) -> tuple[torch.Tensor, Target]:
        """An item with its image as uint8: a quarter of the bytes on the way out of a worker."""
        passes, index = key if isinstance(key, tuple) else (0, key)
        record = self.records[index]
        view = AS_IT_IS if self.augmentation is None else self.augmentation.view(passes, index)
        path = self.images_folder / record.file_name
        with region("load"):
            raw = read_image_file(path)
        own = self.image_size(index)
        shown = view.size_of(*own)
        with region("decode"):
            pixels = decode_to_annotated_size(raw, str(path), record.width, record.height, at_least=shown)
        with region("transform"):
            target = make_target(
                record, own, view, keypoint_swap=self.keypoint_swap, keep_ignored=self.keep_ignored
            )
            return resized(pixels, shown, view.flip), target

    def image_name(self, index: int) -> str:
        """File name of an image, for messages and reports."""
        return self.records[index].file_name

    def image_size(self, index: int) -> tuple[int, int]:
        """Width and height in pixels, as annotated and shown."""
        record = self.records[index]
        if record.width is None or record.height is None:  # opening fills in what files leave out
            raise InputError(f"{record.file_name}: its size is not known")
        return record.width, record.height

    def ground_truth(self) -> GroundTruth:
        """Every image and object as a COCO annotation file holds them; no image is decoded."""
        return build_ground_truth(self.records, self.classes, self.category_ids)


def open_coco_layout(
    name: str,
    images_folder: Path,
    annotation_file: Path,
    options: ReadOptions,
    *,
    progress: Progress | None = None,
    wanted: Wanted | None = None,
    augmentation: Augmentation | None = None,
    content: Any = None,
    notes: tuple[str, ...] = (),
    home: Path | None = None,
) -> CocoLayoutDataset:
    """Open a folder of images and an annotation file; `wanted` picks images, `content` is the file loaded.

    `home` is the data set's folder, where it is more than that of the images: no file name leads out of it.
    """
    homes = (images_folder,) if home is None else (images_folder, home)

    def size_of(file_name: str) -> tuple[int | None, int | None]:
        return size_of_file(images_folder / file_name)

    annotations = read_annotations(
        annotation_file,
        options,
        size_of,
        wanted=wanted or (lambda images: images),
        content=content,
        leads_out=lambda name: leads_out(name, images_folder, homes),
    )
    annotations = replace(annotations, notes=notes)
    return with_annotations(
        name, images_folder, annotations, options, progress=progress, augmentation=augmentation
    )


def with_annotations(
    name: str,
    images_folder: Path,
    annotations: Annotations,
    options: ReadOptions,
    *,
    progress: Progress | None = None,
    augmentation: Augmentation | None = None,
) -> CocoLayoutDataset:
    """Join annotations and images; every image file is looked at before anything is timed."""
    _require_targets(name, annotations, options)
    records, bad_images = annotations.images, list[Problem]()
    if options.inspect_images:
        records, bad_images = _usable(annotations.images, images_folder, options.skip_bad, progress)
    if not records and options.inspect_images:
        raise InputError(f"data set {name}: none of its images can be used", f"look into {images_folder}")
    return CocoLayoutDataset(
        name,
        annotations.classes,
        images_folder,
        records,
        annotations.category_ids,
        (*annotations.problems, *bad_images),
        annotations.notes,
        annotations.keypoint_swap,
        options.keep_ignored,
        augmentation,
    )


def size_of_file(path: Path) -> tuple[int | None, int | None]:
    """Width and height as shown; nothing where the file cannot be read, which is judged elsewhere."""
    try:
        facts = inspect_image(path)
    except ImageError:
        return None, None
    return facts.width, facts.height


def _usable(
    records: tuple[ImageRecord, ...], folder: Path, skip_bad: bool, progress: Progress | None
) -> tuple[tuple[ImageRecord, ...], list[Problem]]:
    good, bad = [], []
    for done, record in enumerate(records, start=1):
        path = folder / record.file_name
        try:
            _require_usable(path, record)
            good.append(record)
        except ImageError as error:
            if not skip_bad:
                raise
            bad.append(Problem(record.file_name, None, error.message.removeprefix(f"{path}: "), "dropped"))
        if progress is not None and (done % 16 == 0 or done == len(records)):
            progress("checking images", done, len(records))
    return tuple(good), bad


def _require_usable(path: Path, record: ImageRecord) -> None:
    facts = inspect_image(path)
    annotated = (record.width, record.height)
    shown, stored = (facts.width, facts.height), (facts.stored_width, facts.stored_height)
    if None not in annotated and annotated not in (shown, stored):
        raise size_differs(str(path), shown, annotated)


def _require_targets(name: str, annotations: Annotations, options: ReadOptions) -> None:
    if options.need_keypoints and not any(
        record.keypoints is not None and record.keypoints.size for record in annotations.images
    ):
        raise UsageError(
            f"data set {name} has no keypoints, which this model needs", "choose another data set or model"
        )
