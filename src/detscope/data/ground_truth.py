"""Records as a COCO annotation file would hold them, for evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.data.annotations.records import ImageRecord
from detscope.data.annotations.segmentation import as_coco
from detscope.data.contract import GroundTruth, TruthCategory, TruthImage, TruthObject


def build_ground_truth(
    records: Sequence[ImageRecord], classes: Sequence[str], category_ids: Sequence[int]
) -> GroundTruth:
    """Images, objects and categories; objects are numbered from 1, because files repeat numbers."""
    images: list[TruthImage] = []
    objects: list[TruthObject] = []
    for record in records:
        images.append(
            {
                "id": record.image_id,
                "file_name": record.file_name,
                "width": record.width or 0,
                "height": record.height or 0,
            }
        )
        for row in range(len(record.labels)):
            objects.append(_object(record, row, category_ids, len(objects) + 1))
    categories: list[TruthCategory] = [
        {"id": number, "name": name} for number, name in zip(category_ids, classes[1:], strict=True)
    ]
    return {"images": images, "annotations": objects, "categories": categories}


def _object(record: ImageRecord, row: int, category_ids: Sequence[int], number: int) -> TruthObject:
    x1, y1, x2, y2 = record.boxes[row].tolist()
    crowd, difficult = int(record.crowd[row]), int(record.difficult[row])
    found: TruthObject = {
        "id": number,
        "image_id": record.image_id,
        "category_id": category_ids[int(record.labels[row]) - 1],
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "area": float(record.areas[row]),
        "iscrowd": crowd,
        "difficult": difficult,
        "ignore": crowd | difficult,
    }
    if record.segmentations is not None:
        found["segmentation"] = as_coco(record.segmentations[row])
    if record.keypoints is not None:
        found["keypoints"] = record.keypoints[row].ravel().tolist()
        found["num_keypoints"] = int((record.keypoints[row][:, 2] > 0).sum())
    return found
