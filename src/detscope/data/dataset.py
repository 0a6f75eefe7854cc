"""A data set of image files and records: what COCO, VOC, YOLO and Pets layouts are read into."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detscope.data.annotations import (
    Annotations,
    BadAnnotationError,
    ImageRecord,
    Size,
    draw_mask,
    export_segmentation,
)
from detscope.data.contract import OpenRequest, Problem, Target, TruthContent, TruthObject, track_progress
from detscope.data.images import (
    ImageError,
    decode_image,
    inspect_image,
    read_image_file,
    require_annotated_size,
)
from detscope.data.loading import AS_IT_IS, Augmentation, ItemKey, View, make_float, make_planes
from detscope.errors import InputError, UsageError
from detscope.marks import region

if TYPE_CHECKING:
    import torch


@dataclass
class FolderDataset(Annotations):
    """Images and targets; see `contract.DetectionDataset`."""

    name: str = field(kw_only=True)
    images_folder: Path = field(kw_only=True)
    augmentation: Augmentation | None = field(default=None, kw_only=True)  # None: every image as it is

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: ItemKey) -> tuple[torch.Tensor, Target]:
        pixels, target = self.read(key)
        with region("transform"):
            return make_float(pixels), target

    def read(self, key: ItemKey) -> tuple[torch.Tensor, Target]:
        """An item with its image as uint8: a quarter of the bytes on the way out of a worker."""
        passes, index = key if isinstance(key, tuple) else (0, key)
        record = self.records[index]
        view = AS_IT_IS if self.augmentation is None else self.augmentation.draw_view(passes, index)
        path = self.images_folder / record.file_name
        with region("load"):
            raw = read_image_file(path)
        own = self.image_size(index)
        shown = view.scale_size(*own)
        with region("decode"):
            pixels = decode_image(raw, str(path), record.width, record.height, at_least=shown)
        with region("transform"):
            target = _make_target(record, own, view, self.keypoint_swap)
            return make_planes(pixels, shown, view.flip), target

    def image_name(self, index: int) -> str:
        """File name of an image, for messages and reports."""
        return self.records[index].file_name

    def image_size(self, index: int) -> tuple[int, int]:
        """Width and height in pixels, as annotated and shown."""
        record = self.records[index]
        if record.width is None or record.height is None:  # opening fills in what files leave out
            raise InputError(
                f"{record.file_name}: its size is not known", "give width and height in its annotations"
            )
        return record.width, record.height

    def ground_truth(self) -> TruthContent:
        """Every image and object as a COCO annotation file holds them; no image is decoded."""
        content: TruthContent = {
            "images": [
                {
                    "id": one.image_id,
                    "file_name": one.file_name,
                    "width": one.width or 0,
                    "height": one.height or 0,
                }
                for one in self.records
            ],
            "annotations": [],
            "categories": [
                {"id": number, "name": name}
                for number, name in zip(self.category_ids, self.classes[1:], strict=True)
            ],
        }
        objects = content["annotations"]
        for record in self.records:
            for row, (x1, y1, x2, y2) in enumerate(record.boxes.tolist()):
                crowd, difficult = int(record.crowd[row]), int(record.difficult[row])
                made: TruthObject = {
                    "id": len(objects) + 1,  # from 1, because files repeat numbers
                    "image_id": record.image_id,
                    "category_id": self.category_ids[int(record.labels[row]) - 1],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": float(record.areas[row]),
                    "iscrowd": crowd,
                    "difficult": difficult,
                    "ignore": crowd | difficult,
                }
                if record.segmentations is not None:
                    made["segmentation"] = export_segmentation(record.segmentations[row])
                if record.keypoints is not None:
                    made["keypoints"] = record.keypoints[row].ravel().tolist()
                    made["num_keypoints"] = int((record.keypoints[row][:, 2] > 0).sum())
                objects.append(made)
        return content


def join_images(
    name: str, images_folder: Path, annotations: Annotations, request: OpenRequest
) -> FolderDataset:
    """Join annotations and images; every image file is looked at before anything is timed."""
    records, problems = annotations.records, list(annotations.problems)
    if request.need_keypoints and not any(
        one.keypoints is not None and one.keypoints.size for one in records
    ):
        raise UsageError(
            f"data set {name} has no keypoints, which this model needs", "choose another data set or model"
        )
    if not request.checking:
        good = []
        for record in track_progress(records, len(records), "checking images", request.progress):
            path = images_folder / record.file_name
            try:
                require_annotated_size(inspect_image(path), str(path), record.width, record.height)
                good.append(record)
            except ImageError as error:
                if not request.skip_bad:
                    raise
                reason = error.message.removeprefix(f"{path}: ")
                problems.append(Problem(record.file_name, None, reason, "dropped"))
        records = tuple(good)
        if not records:
            raise InputError(f"data set {name}: none of its images can be used", f"look into {images_folder}")
    return FolderDataset(
        annotations.classes,
        annotations.category_ids,
        records,
        tuple(problems),
        annotations.notes,
        annotations.keypoint_swap,
        name=name,
        images_folder=images_folder,
        augmentation=request.make_augmentation(),
    )


def read_image_size(path: Path) -> Size:
    """Width and height as shown; nothing where the file cannot be read, which is judged elsewhere."""
    try:
        facts = inspect_image(path)
    except ImageError:
        return None, None
    return facts.width, facts.height


def _make_target(
    record: ImageRecord, size: tuple[int, int], view: View, keypoint_swap: tuple[int, ...]
) -> Target:
    """What a detector learns from a view; `size` is (width, height) of the image's own pixels."""
    import torch

    kept = np.flatnonzero((record.crowd | record.difficult) == 0)
    shown = view.scale_size(*size)
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
        masks = torch.empty((len(kept), shown[1], shown[0]), dtype=torch.uint8)
        for row, index in enumerate(kept):
            try:
                mask = draw_mask(record.segmentations[index], size[1], size[0], shown=(shown[1], shown[0]))
            except BadAnnotationError as error:
                number = record.annotation_ids[index]
                raise ImageError(f"image {record.file_name}, annotation {number}: {error}") from error
            masks[row] = torch.from_numpy(np.ascontiguousarray(mask[:, ::-1]) if view.flip else mask)
        target["masks"] = masks
    if record.keypoints is not None:
        points = record.keypoints[kept].copy()
        points[..., :2] *= scale.astype(np.float32)
        if view.flip:
            points = points[:, list(keypoint_swap)] if keypoint_swap else points
            points[..., 0] = shown[0] - points[..., 0]
        points[points[..., 2] == 0] = 0  # COCO writes points that nobody marked as 0, 0, 0
        target["keypoints"] = torch.from_numpy(np.ascontiguousarray(points))
    return target
