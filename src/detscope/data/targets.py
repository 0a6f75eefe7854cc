"""What a detector learns from an image, in the pixels of the view it is shown in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from detscope.data.annotations.records import ImageRecord
from detscope.data.annotations.segmentation import SegmentationError, draw_mask
from detscope.data.contract import Target
from detscope.data.images.decoding import ImageError
from detscope.data.loading.views import View

if TYPE_CHECKING:
    import torch


def make_target(
    record: ImageRecord,
    size: tuple[int, int],
    view: View,
    *,
    keypoint_swap: tuple[int, ...] = (),
    keep_ignored: bool = False,
) -> Target:
    """The target of a view; `size` is (width, height) of the image's own pixels."""
    import torch

    kept = _kept(record, keep_ignored)
    shown = view.size_of(*size)
    scale = np.array([shown[0] / size[0], shown[1] / size[1]])
    boxes = record.boxes[kept] * np.tile(scale, 2)
    if view.flip:
        boxes[:, [0, 2]] = shown[0] - boxes[:, [2, 0]]
    target: Target = {
        "boxes": torch.from_numpy(boxes.astype(np.float32)),
        "labels": torch.from_numpy(record.labels[kept]),
        "image_id": record.image_id,
        "area": torch.from_numpy((record.areas[kept] * scale.prod()).astype(np.float32)),
        "iscrowd": torch.from_numpy(record.crowd[kept]),
        "difficult": torch.from_numpy(record.difficult[kept]),
    }
    if record.segmentations is not None:
        target["masks"] = _masks(record, kept, size, shown, view.flip)
    if record.keypoints is not None:
        points = _points(record.keypoints[kept], scale, shown[0] if view.flip else None, keypoint_swap)
        target["keypoints"] = torch.from_numpy(points)
    return target


def _kept(record: ImageRecord, keep_ignored: bool) -> npt.NDArray[np.intp]:
    if keep_ignored:
        return np.arange(len(record.labels))
    return np.flatnonzero((record.crowd | record.difficult) == 0)


def _points(
    points: npt.NDArray[np.float32],
    scale: npt.NDArray[np.float64],
    mirror_width: int | None,
    swap: tuple[int, ...],
) -> npt.NDArray[np.float32]:
    shown = points.copy()
    shown[..., :2] *= scale.astype(np.float32)
    if mirror_width is not None:
        if swap:
            shown = shown[:, list(swap)]
        shown[..., 0] = mirror_width - shown[..., 0]
    shown[shown[..., 2] == 0] = 0  # COCO writes points that nobody marked as 0, 0, 0
    return np.ascontiguousarray(shown)


def _masks(
    record: ImageRecord,
    kept: npt.NDArray[np.intp],
    size: tuple[int, int],
    shown: tuple[int, int],
    flip: bool,
) -> torch.Tensor:
    import torch

    masks = torch.empty((len(kept), shown[1], shown[0]), dtype=torch.uint8)
    segmentations = record.segmentations or ()
    for row, index in enumerate(kept):
        try:
            mask = draw_mask(segmentations[index], size[1], size[0], shown=(shown[1], shown[0]))
        except SegmentationError as error:
            number = record.annotation_ids[index]
            raise ImageError(f"image {record.file_name}, annotation {number}: {error}") from error
        masks[row] = torch.from_numpy(np.ascontiguousarray(mask[:, ::-1]) if flip else mask)
    return masks
