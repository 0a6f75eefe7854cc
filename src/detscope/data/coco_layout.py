"""A data set in COCO layout: a folder of images and an annotation file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from detscope.data.coco_annotations import Annotations, ImageRecord, ReadOptions, read_annotations
from detscope.data.contract import Problem, Progress, Target
from detscope.data.images import ImageError, decode_to_annotated_size, inspect_image, read_image_file
from detscope.data.segmentation import SegmentationError, draw_mask
from detscope.errors import InputError, UsageError
from detscope.marks import region

if TYPE_CHECKING:
    import torch


@dataclass
class CocoLayoutDataset:
    """Images and targets of one annotation file; see `contract.DetectionDataset`."""

    name: str
    classes: tuple[str, ...]
    images_folder: Path
    records: tuple[ImageRecord, ...] = field(repr=False)
    category_ids: tuple[int, ...] = field(default=(), repr=False)
    problems: tuple[Problem, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]:
        record = self.records[index]
        path = self.images_folder / record.file_name
        with region("load"):
            raw = read_image_file(path)
        with region("decode"):
            pixels = decode_to_annotated_size(raw, str(path), record.width, record.height)
        with region("transform"):
            return to_float(pixels), _target(record, *pixels.shape[:2])

    def image_name(self, index: int) -> str:
        """File name of an image, for messages and reports."""
        return self.records[index].file_name


def open_coco_layout(
    name: str,
    images_folder: Path,
    annotation_file: Path,
    options: ReadOptions,
    *,
    progress: Progress | None = None,
) -> CocoLayoutDataset:
    """Open a folder of images and an annotation file."""
    annotations = read_annotations(annotation_file, options, lambda name: _size_of(images_folder / name))
    return with_annotations(name, images_folder, annotations, options, progress=progress)


def with_annotations(
    name: str,
    images_folder: Path,
    annotations: Annotations,
    options: ReadOptions,
    *,
    progress: Progress | None = None,
) -> CocoLayoutDataset:
    """Join annotations and images; every image file is looked at before anything is timed."""
    _require_targets(name, annotations, options)
    records, bad_images = _usable(annotations.images, images_folder, options.skip_bad, progress)
    if not records:
        raise InputError(f"data set {name}: none of its images can be used", f"look into {images_folder}")
    return CocoLayoutDataset(
        name,
        annotations.classes,
        images_folder,
        records,
        annotations.category_ids,
        (*annotations.problems, *bad_images),
    )


def _size_of(path: Path) -> tuple[int | None, int | None]:
    try:
        facts = inspect_image(path)
    except ImageError:
        return None, None  # `_usable` comes to the same image and judges it
    return facts.width, facts.height


def to_float(pixels: npt.NDArray[np.uint8]) -> torch.Tensor:
    """uint8 RGB [H, W, 3] to float32 [3, H, W] in [0, 1], in one pass over memory."""
    import torch

    planes = np.divide(pixels.transpose(2, 0, 1), np.float32(255), dtype=np.float32, order="C")
    return torch.from_numpy(planes)


def _usable(
    records: tuple[ImageRecord, ...], folder: Path, skip_bad: bool, progress: Progress | None
) -> tuple[tuple[ImageRecord, ...], list[Problem]]:
    good, bad = [], []
    for done, record in enumerate(records, start=1):
        path = folder / record.file_name
        try:
            inspect_image(path)
            good.append(record)
        except ImageError as error:
            if not skip_bad:
                raise
            bad.append(Problem(record.file_name, None, error.message.removeprefix(f"{path}: "), "dropped"))
        if progress is not None:
            progress("checking images", done, len(records))
    return tuple(good), bad


def _require_targets(name: str, annotations: Annotations, options: ReadOptions) -> None:
    if options.need_keypoints and not any(
        record.keypoints is not None and record.keypoints.size for record in annotations.images
    ):
        raise UsageError(
            f"data set {name} has no keypoints, which this model needs", "choose another data set or model"
        )


def _target(record: ImageRecord, height: int, width: int) -> Target:
    import torch

    target: Target = {
        "boxes": torch.from_numpy(record.boxes.copy()),
        "labels": torch.from_numpy(record.labels.copy()),
        "image_id": record.image_id,
        "area": torch.from_numpy(record.areas.copy()),
        "iscrowd": torch.from_numpy(record.crowd.copy()),
    }
    if record.segmentations is not None:
        target["masks"] = _masks(record, height, width)
    if record.keypoints is not None:
        target["keypoints"] = torch.from_numpy(record.keypoints.copy())
    return target


def _masks(record: ImageRecord, height: int, width: int) -> torch.Tensor:
    import torch

    masks = torch.empty((len(record.segmentations or ()), height, width), dtype=torch.uint8)
    for row, segmentation in enumerate(record.segmentations or ()):
        try:
            masks[row] = torch.from_numpy(draw_mask(segmentation, height, width))
        except SegmentationError as error:
            raise ImageError(
                f"image {record.file_name}, annotation {record.annotation_ids[row]}: {error}"
            ) from error
    return masks
