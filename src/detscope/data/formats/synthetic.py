"""Synthetic detection data: real JPEG files in COCO layout, the same for the same seed.

Coloured shapes of several classes and sizes on a noisy background, with boxes, polygons and 17
points on every outline, so that every family of detectors trains on them. Made once per set of
parameters and then reused.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.contract import Progress
from detscope.data.dataset import CocoLayoutDataset, open_coco_layout
from detscope.data.download.folders import build_folder_once
from detscope.data.registry import OpenRequest
from detscope.data.shapes import CLASSES, KEYPOINT_COUNT, Outline, area_inside, placed, points_along

DEFAULT_IMAGES = 16  # one pass of the default model takes minutes, not a quarter of an hour, on a CPU
# Part of the folder's name: a change in what is drawn makes new folders.
FORMAT_VERSION = 1
JPEG_QUALITY = 90
# Largest share of an object's box that another one may cover.
MAX_OVERLAP = 0.1
_PLACING_ATTEMPTS = 40


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
class _Object:
    label: int
    outline: Outline
    colour: tuple[int, int, int]


def open_synthetic(request: OpenRequest) -> CocoLayoutDataset:
    """Open the synthetic data set of these settings, drawing it first where it is not there yet."""
    settings = request.settings
    parameters = SyntheticParameters(
        settings.images or DEFAULT_IMAGES,
        settings.image_width,
        settings.image_height,
        settings.max_objects,
        request.seed,
        request.split,
    )
    folder = generate(Path(settings.root), parameters, request.progress)
    annotation_file = folder / "annotations" / "instances.json"
    return open_coco_layout(
        "synthetic",
        folder / "images",
        annotation_file,
        request.read_options(),
        progress=request.progress,
        augmentation=request.augmentation(),
    )


def generate(root: Path, parameters: SyntheticParameters, progress: Progress | None = None) -> Path:
    """Draw the data set under `root/synthetic/` unless it is there; returns its folder."""
    folder = root / "synthetic" / parameters.folder_name()
    build_folder_once(
        folder,
        lambda partial: _write(partial, parameters, progress),
        lambda made: _is_complete(made, parameters),
        replace_incomplete=True,
    )
    return folder


def _is_complete(folder: Path, parameters: SyntheticParameters) -> bool:
    images = folder / "images"
    return (folder / "annotations" / "instances.json").is_file() and all(
        (images / _file_name(index)).is_file() for index in range(parameters.images)
    )


def _file_name(index: int) -> str:
    return f"{index + 1:06d}.jpg"


def _write(folder: Path, parameters: SyntheticParameters, progress: Progress | None) -> None:
    (folder / "images").mkdir()
    (folder / "annotations").mkdir()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(parameters.images):
        image = {"id": index + 1, "file_name": _file_name(index)}
        images.append({**image, "width": parameters.width, "height": parameters.height})
        for found in _write_image(folder / "images" / _file_name(index), parameters, index):
            annotations.append(_annotation(found, len(annotations) + 1, index + 1))
        if progress is not None:
            progress("drawing synthetic images", index + 1, parameters.images)
    content = {
        "info": {"description": "synthetic shapes made by detscope", **asdict(parameters)},
        "images": images,
        "annotations": annotations,
        "categories": [_category(label) for label in range(1, len(CLASSES) + 1)],
    }
    (folder / "annotations" / "instances.json").write_text(json.dumps(content))


def _category(label: int) -> dict[str, Any]:
    points = [f"outline_{number}" for number in range(1, KEYPOINT_COUNT + 1)]
    return {"id": label, "name": CLASSES[label - 1].name, "supercategory": "shape", "keypoints": points}


def _annotation(found: _Object, annotation_id: int, image_id: int) -> dict[str, Any]:
    low, high = found.outline.min(axis=0), found.outline.max(axis=0)
    points = points_along(found.outline)
    visible = np.column_stack([points, np.full(len(points), 2.0)])
    return {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": found.label,
        "bbox": [*low.round(2).tolist(), *(high - low).round(2).tolist()],
        "area": round(area_inside(found.outline), 2),
        "iscrowd": 0,
        "segmentation": [found.outline.round(2).ravel().tolist()],
        "keypoints": visible.round(2).ravel().tolist(),
        "num_keypoints": len(points),
    }


def _write_image(path: Path, parameters: SyntheticParameters, index: int) -> list[_Object]:
    from PIL import Image, ImageDraw

    # Every image has a stream of its own: the first ten of 10 and of 1000 images are the same.
    random = np.random.default_rng([parameters.seed, 0 if parameters.split == "train" else 1, index])
    picture = Image.fromarray(_background(random, parameters.width, parameters.height))
    objects = _objects(random, parameters)
    draw = ImageDraw.Draw(picture)
    for found in objects:
        draw.polygon(
            [(float(x), float(y)) for x, y in found.outline], fill=found.colour, outline=(20, 20, 20)
        )
    grain = random.normal(0.0, 6.0, (parameters.height, parameters.width, 3))
    noisy = (np.asarray(picture, dtype=np.float64) + grain).clip(0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(path, "JPEG", quality=JPEG_QUALITY)
    return objects


def _background(random: np.random.Generator, width: int, height: int) -> npt.NDArray[np.uint8]:
    from PIL import Image

    blotches = random.integers(90, 170, (max(2, height // 24), max(2, width // 24), 3), dtype=np.uint8)
    smooth = Image.fromarray(blotches).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(smooth)


def _objects(random: np.random.Generator, parameters: SyntheticParameters) -> list[_Object]:
    wanted = int(random.integers(1, parameters.max_objects + 1))
    objects: list[_Object] = []
    for _ in range(wanted):
        found = _place(random, parameters, objects)
        if found is not None:  # a full picture has fewer objects rather than hidden ones
            objects.append(found)
    return objects


def _place(
    random: np.random.Generator, parameters: SyntheticParameters, others: list[_Object]
) -> _Object | None:
    short_side = min(parameters.width, parameters.height)
    label = int(random.integers(1, len(CLASSES) + 1))
    radius = short_side * float(random.uniform(0.07, 0.24))
    turn = float(random.uniform(-math.pi / 12, math.pi / 12))
    jitter = random.integers(-18, 19, 3)
    colour = tuple(int(value) for value in (np.array(CLASSES[label - 1].colour) + jitter).clip(0, 255))
    for _ in range(_PLACING_ATTEMPTS):
        centre = (
            float(random.uniform(radius, parameters.width - radius)),
            float(random.uniform(radius, parameters.height - radius)),
        )
        outline = placed(CLASSES[label - 1], centre, radius, turn)
        if all(_overlap(outline, other.outline) <= MAX_OVERLAP for other in others):
            return _Object(label, outline, (colour[0], colour[1], colour[2]))
        radius = max(radius * 0.96, short_side * 0.05)
    return None


def _overlap(one: Outline, other: Outline) -> float:
    """Shared area of two boxes as a share of the smaller box."""
    low = np.maximum(one.min(axis=0), other.min(axis=0))
    high = np.minimum(one.max(axis=0), other.max(axis=0))
    shared = float(np.prod((high - low).clip(min=0.0)))
    return shared / min(float(np.prod(np.ptp(box, axis=0))) for box in (one, other))
