"""Synthetic detection data: real JPEG files in COCO layout, the same for the same seed.

Coloured shapes of several classes and sizes on a noisy background, with boxes, polygons and 17
points on every outline, so that every family of detectors trains on them. Made once per set of
parameters and then reused.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.contract import DatasetFormat, OpenRequest, Progress, track_progress
from detscope.data.dataset import FolderDataset
from detscope.data.download.extract import build_folder_once
from detscope.data.formats.coco import open_coco_file
from detscope.errors import UsageError
from detscope.limits import require_within

Outline = npt.NDArray[np.float64]  # [N, 2] of x, y

DEFAULT_IMAGES = 16  # one pass of the default model takes minutes, not a quarter of an hour, on a CPU
# Part of the folder's name: a change in what is drawn makes new folders.
FORMAT_VERSION = 1
JPEG_QUALITY = 90
# Largest share of an object's box that another one may cover.
MAX_OVERLAP = 0.1
KEYPOINT_COUNT = 17  # as people in COCO, so that a Keypoint R-CNN keeps its own head
_PLACING_ATTEMPTS = 40


@dataclass(frozen=True)
class ShapeClass:
    """A class of objects: its name, colour and outline of radius 1, first corner on top."""

    name: str
    colour: tuple[int, int, int]
    outline: Outline


def _draw_regular(corners: int, turn: float = 0.0) -> Outline:
    angles = 2 * math.pi * (np.arange(corners) + turn) / corners - math.pi / 2
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _draw_cross(arm: float) -> Outline:
    a, b = arm, math.sqrt(1 - arm * arm)
    corners = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a)]
    return np.array([*corners, (-b, -a), (-a, -a)])


CLASSES = (
    ShapeClass("circle", (214, 48, 49), _draw_regular(32)),
    ShapeClass("square", (41, 98, 214), _draw_regular(4, turn=0.5)),
    ShapeClass("triangle", (38, 166, 65), _draw_regular(3)),
    ShapeClass("star", (240, 200, 30), _draw_regular(10) * np.tile([[1.0], [0.42]], (5, 1))),
    ShapeClass("cross", (160, 60, 190), _draw_cross(0.3)),
)


@dataclass(frozen=True)
class SyntheticParameters:
    """What decides the content of a synthetic data set."""

    images: int
    width: int
    height: int
    max_objects: int
    seed: int
    split: str

    def folder_name(self) -> str:
        """Equal parameters, equal folder."""
        text = json.dumps({"version": FORMAT_VERSION, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Shape:
    label: int
    outline: Outline
    colour: tuple[int, ...]


def open_synthetic(request: OpenRequest) -> FolderDataset:
    """Open the synthetic data set of these settings, drawing it first where it is not there yet."""
    settings = request.settings
    require_within("synthetic_images", settings.images or 0, "data.images", UsageError)
    require_within("image_pixels", settings.image_width * settings.image_height, "an image", UsageError)
    parameters = SyntheticParameters(
        settings.images or DEFAULT_IMAGES,
        settings.image_width,
        settings.image_height,
        settings.max_objects,
        request.seed,
        request.split,
    )
    folder = generate_images(Path(settings.root), parameters, request.progress)
    return open_coco_file("synthetic", folder / "images", folder / "annotations" / "instances.json", request)


def generate_images(root: Path, parameters: SyntheticParameters, progress: Progress | None = None) -> Path:
    """Draw the data set under `root/synthetic/` unless it is there; returns its folder."""
    folder = root / "synthetic" / parameters.folder_name()
    names = [f"{number:06d}.jpg" for number in range(1, parameters.images + 1)]

    def is_complete(folder: Path) -> bool:
        files = (folder / "annotations" / "instances.json", *(folder / "images" / name for name in names))
        return all(file.is_file() for file in files)

    def write_files(partial: Path) -> None:
        (partial / "images").mkdir()
        (partial / "annotations").mkdir()
        size = {"width": parameters.width, "height": parameters.height}
        numbered = list(enumerate(names, start=1))
        annotations: list[dict[str, Any]] = []
        for number, name in track_progress(
            numbered, len(names), "drawing synthetic images", progress, every=1
        ):
            for shape in _draw_image(partial / "images" / name, parameters, number - 1):
                annotations.append(_annotate_shape(shape, len(annotations) + 1, number))
        points = [f"outline_{number}" for number in range(1, KEYPOINT_COUNT + 1)]
        content = {
            "info": {"description": "synthetic shapes made by detscope", **asdict(parameters)},
            "images": [{"id": number, "file_name": name, **size} for number, name in numbered],
            "annotations": annotations,
            "categories": [
                {"id": label, "name": shape.name, "supercategory": "shape", "keypoints": points}
                for label, shape in enumerate(CLASSES, start=1)
            ],
        }
        (partial / "annotations" / "instances.json").write_text(json.dumps(content))

    build_folder_once(folder, write_files, is_complete, replace_incomplete=True)
    return folder


def _annotate_shape(shape: _Shape, annotation_id: int, image_id: int) -> dict[str, Any]:
    outline = shape.outline
    low, high = outline.min(axis=0), outline.max(axis=0)
    # points at equal distances along the closed outline, from its first corner on
    closed = np.vstack([outline, outline[:1]])
    distance = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    wanted = distance[-1] * np.arange(KEYPOINT_COUNT) / KEYPOINT_COUNT
    points = np.stack([np.interp(wanted, distance, closed[:, axis]) for axis in (0, 1)], axis=1)
    visible = np.column_stack([points, np.full(len(points), 2.0)])
    x, y = outline.T
    area = abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2  # shoelace formula
    return {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": shape.label,
        "bbox": [*low.round(2).tolist(), *(high - low).round(2).tolist()],
        "area": round(area, 2),
        "iscrowd": 0,
        "segmentation": [outline.round(2).ravel().tolist()],
        "keypoints": visible.round(2).ravel().tolist(),
        "num_keypoints": len(points),
    }


def _draw_image(path: Path, parameters: SyntheticParameters, index: int) -> list[_Shape]:
    from PIL import Image, ImageDraw

    # Every image has a stream of its own: the first ten of 10 and of 1000 images are the same.
    random = np.random.default_rng([parameters.seed, 0 if parameters.split == "train" else 1, index])
    width, height = parameters.width, parameters.height
    blotches = random.integers(90, 170, (max(2, height // 24), max(2, width // 24), 3), dtype=np.uint8)
    picture = Image.fromarray(blotches).resize((width, height), Image.Resampling.BICUBIC)
    shapes: list[_Shape] = []
    for _ in range(int(random.integers(1, parameters.max_objects + 1))):
        placed = _place_shape(random, parameters, shapes)
        if placed is not None:  # a full picture has fewer objects rather than hidden ones
            shapes.append(placed)
    draw = ImageDraw.Draw(picture)
    for shape in shapes:
        corners = [(float(x), float(y)) for x, y in shape.outline]
        draw.polygon(corners, fill=shape.colour, outline=(20, 20, 20))
    grain = random.normal(0.0, 6.0, (height, width, 3))
    noisy = (np.asarray(picture, dtype=np.float64) + grain).clip(0, 255).astype(np.uint8)
    encoded = io.BytesIO()  # PIL writes a part of it and says nothing where a disk is full
    Image.fromarray(noisy).save(encoded, "JPEG", quality=JPEG_QUALITY)
    path.write_bytes(encoded.getbuffer())
    return shapes


def _place_shape(
    random: np.random.Generator, parameters: SyntheticParameters, others: list[_Shape]
) -> _Shape | None:
    short_side = min(parameters.width, parameters.height)
    label = int(random.integers(1, len(CLASSES) + 1))
    radius = short_side * float(random.uniform(0.07, 0.24))
    turn = float(random.uniform(-math.pi / 12, math.pi / 12))
    jitter = random.integers(-18, 19, 3)
    colour = tuple(int(value) for value in (np.array(CLASSES[label - 1].colour) + jitter).clip(0, 255))
    rotation = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    rotated = CLASSES[label - 1].outline @ rotation
    for _ in range(_PLACING_ATTEMPTS):
        centre = (
            float(random.uniform(radius, parameters.width - radius)),
            float(random.uniform(radius, parameters.height - radius)),
        )
        outline = rotated * radius + np.array(centre)
        if all(_measure_overlap(outline, other.outline) <= MAX_OVERLAP for other in others):
            return _Shape(label, outline, colour)
        radius = max(radius * 0.96, short_side * 0.05)
    return None


def _measure_overlap(one: Outline, other: Outline) -> float:
    """Shared area of two boxes as a share of the smaller box."""
    low = np.maximum(one.min(axis=0), other.min(axis=0))
    high = np.minimum(one.max(axis=0), other.max(axis=0))
    shared = float(np.prod((high - low).clip(min=0.0)))
    return shared / min(float(np.prod(np.ptp(box, axis=0))) for box in (one, other))


PART = DatasetFormat(
    "synthetic",
    "generated shapes with boxes, masks and keypoints",
    open_synthetic,
    class_lists=([shape.name for shape in CLASSES],),
)
