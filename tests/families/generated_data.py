"""Tiny data sets of drawn rectangles, written as each library wants them; nothing is downloaded."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

SIDE = 96  # pixels of an image
CLASSES = ("red", "green", "blue")
_COLOURS = ((200, 40, 40), (40, 180, 40), (40, 60, 200))
KEYPOINTS = 3  # of an object: two corners and the middle


@dataclass(frozen=True)
class DrawnBox:
    """A rectangle in pixels, with a class from 0."""

    label: int
    left: int
    top: int
    right: int
    bottom: int


def draw_images(folder: Path, count: int, boxes: int, seed: int) -> list[list[DrawnBox]]:
    """`count` images with `boxes` rectangles each; what is on them."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(seed)
    found = []
    for number in range(count):
        image = Image.new("RGB", (SIDE, SIDE), (90, 90, 90))
        pen = ImageDraw.Draw(image)
        drawn = []
        for _ in range(boxes):
            left, top = dice.randrange(SIDE - 40), dice.randrange(SIDE - 40)
            width, height = dice.randrange(16, 40), dice.randrange(16, 40)
            one = DrawnBox(dice.randrange(len(CLASSES)), left, top, left + width, top + height)
            pen.rectangle((one.left, one.top, one.right, one.bottom), _COLOURS[one.label])
            drawn.append(one)
        image.save(folder / f"{number:03d}.jpg", quality=95)
        found.append(drawn)
    return found


def write_yolo_set(
    folder: Path, task: str = "detect", train: int = 8, val: int = 2, boxes: int = 3, validates: bool = True
) -> Path:
    """Images, text labels of `task` (detect, segment, pose, obb), and the file that names them."""
    for number, (part, count) in enumerate((("train", train), ("val", val))):
        labels = folder / "labels" / part
        labels.mkdir(parents=True, exist_ok=True)
        drawn = draw_images(folder / "images" / part, count, boxes, seed=number)
        for index, objects in enumerate(drawn):
            lines = [_describe_box(one, task) for one in objects]
            (labels / f"{index:03d}.txt").write_text("\n".join(lines) + "\n")
    about = [f"path: {folder}", "train: images/train", f"val: images/{'val' if validates else 'train'}"]
    about += [f"nc: {len(CLASSES)}", f"names: [{', '.join(CLASSES)}]"]
    if task == "pose":
        about += [f"kpt_shape: [{KEYPOINTS}, 3]", "flip_idx: [0, 1, 2]"]
    path = folder / "data.yaml"
    path.write_text("\n".join(about) + "\n")
    return path


def _describe_box(one: DrawnBox, task: str) -> str:
    left, top, right, bottom = (edge / SIDE for edge in (one.left, one.top, one.right, one.bottom))
    corners = [left, top, right, top, right, bottom, left, bottom]
    centre = [(left + right) / 2, (top + bottom) / 2]
    box = [*centre, right - left, bottom - top]
    points = [left, top, 2, right, bottom, 2, *centre, 2]
    values = {"detect": box, "segment": corners, "obb": corners, "pose": box + points}[task]
    return " ".join([str(one.label), *(f"{value:.5f}" for value in values)])


def write_coco_set(folder: Path, train: int = 8, val: int = 2, boxes: int = 3) -> Path:
    """Folders `train`, `valid` and `test`, each with its images and `_annotations.coco.json`."""
    for number, (part, count) in enumerate((("train", train), ("valid", val), ("test", val))):
        drawn = draw_images(folder / part, count, boxes, seed=number)
        images = [
            {"id": index, "file_name": f"{index:03d}.jpg", "width": SIDE, "height": SIDE}
            for index in range(count)
        ]
        annotations: list[dict[str, object]] = []
        for index, objects in enumerate(drawn):
            for one in objects:
                width, height = one.right - one.left, one.bottom - one.top
                annotations.append(
                    {
                        "id": len(annotations),
                        "image_id": index,
                        "category_id": one.label,
                        "bbox": [one.left, one.top, width, height],
                        "area": width * height,
                        "iscrowd": 0,
                    }
                )
        categories = [
            {"id": label, "name": name, "supercategory": "none"} for label, name in enumerate(CLASSES)
        ]
        whole = {"images": images, "annotations": annotations, "categories": categories}
        (folder / part / "_annotations.coco.json").write_text(json.dumps(whole))
    return folder
