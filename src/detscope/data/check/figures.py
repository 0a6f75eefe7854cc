"""What a data set is like: counts, histograms, and what of it a training will pay for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.annotations.records import ImageRecord
from detscope.data.loading.order import grouped_batches, plain_batches, shape_of
from detscope.data.loading.views import View

# The default of torchvision's R-CNNs: short side 800, long side up to 1333, padded to whole 32s.
NETWORK = View(short_side=800, max_size=1333)
STRIDE = 32
SIMULATED_BATCHES = (2, 8)
# COCO's borders between small, medium and large objects, as sides of a square
SMALL_SIDE, MEDIUM_SIDE = 32, 96

Histogram = dict[str, Any]


def describe(
    records: Sequence[ImageRecord], sizes: Sequence[tuple[int, int]], classes: Sequence[str]
) -> dict[str, Any]:
    """Counts, histograms and costs of the images that can be opened, with their sizes as shown."""
    boxes = np.array([len(record.labels) for record in records], dtype=np.int64)
    sides = _concatenated([_sides(record) for record in records])
    labels = _concatenated([record.labels.astype(np.float64) for record in records]).astype(np.int64)
    per_class = np.bincount(labels, minlength=len(classes))[1:] if len(classes) > 1 else np.zeros(0, np.int64)
    return {
        "objects": int(boxes.sum()),
        "crowd": int(sum(record.crowd.sum() for record in records)),
        "difficult": int(sum(record.difficult.sum() for record in records)),
        "images_without_objects": int((boxes == 0).sum()),
        "histograms": {
            "image_size": _image_sizes(sizes),
            "boxes_per_image": _counts(boxes),
            "box_size": _box_sizes(sides),
            "classes": _class_counts(per_class, classes),
        },
        "cost": _cost(records, sizes, boxes, sides),
    }


def _sides(record: ImageRecord) -> npt.NDArray[np.float64]:
    spans = record.boxes[:, 2:] - record.boxes[:, :2]
    return np.asarray(np.sqrt(spans.prod(axis=1)))


def _concatenated(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.zeros(0)


def _histogram(labels: Sequence[str], counts: Sequence[int], unit: str) -> Histogram:
    return {"labels": list(labels), "counts": [int(count) for count in counts], "unit": unit}


def _image_sizes(sizes: Sequence[tuple[int, int]]) -> Histogram:
    edges = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8]
    labels = [
        f"< {edges[0]:g}",
        *(f"{low:g} to {high:g}" for low, high in pairwise(edges)),
    ]
    megapixels = np.array([width * height / 1e6 for width, height in sizes])
    counts = np.bincount(np.searchsorted(edges, megapixels, side="right"), minlength=len(edges) + 1)
    return _trimmed(_histogram([*labels, f">= {edges[-1]:g}"], counts.tolist(), "megapixels"))


def _counts(boxes: npt.NDArray[np.int64]) -> Histogram:
    edges = [1, 2, 3, 5, 10, 20, 50, 100]
    labels = ["0", "1", "2", "3 to 4", "5 to 9", "10 to 19", "20 to 49", "50 to 99", "100 or more"]
    counts = np.bincount(np.searchsorted(edges, boxes, side="right"), minlength=len(labels))
    return _trimmed(_histogram(labels, counts.tolist(), "number of images"))


def _box_sizes(sides: npt.NDArray[np.float64]) -> Histogram:
    edges = [8, 16, SMALL_SIDE, 64, MEDIUM_SIDE, 192, 384]
    labels = ["< 8", *(f"{low} to {high}" for low, high in pairwise(edges)), ">= 384"]
    counts = np.bincount(np.searchsorted(edges, sides, side="right"), minlength=len(labels))
    return _trimmed(_histogram(labels, counts.tolist(), "square root of the area, pixels"))


def _class_counts(per_class: npt.NDArray[np.int64], classes: Sequence[str]) -> Histogram:
    order = np.argsort(-per_class, kind="stable")
    return _histogram([classes[place + 1] for place in order], per_class[order].tolist(), "objects")


def _trimmed(histogram: Histogram) -> Histogram:
    """Without empty bars at either end."""
    filled = [place for place, count in enumerate(histogram["counts"]) if count]
    part = slice(filled[0], filled[-1] + 1) if filled else slice(0, 0)
    return {**histogram, "labels": histogram["labels"][part], "counts": histogram["counts"][part]}


def _cost(
    records: Sequence[ImageRecord],
    sizes: Sequence[tuple[int, int]],
    boxes: npt.NDArray[np.int64],
    sides: npt.NDArray[np.float64],
) -> dict[str, Any]:
    if not sizes:
        return {}
    own = np.array([width * height for width, height in sizes], dtype=np.float64)
    shown = [NETWORK.size_of(width, height) for width, height in sizes]
    network = np.array([width * height for width, height in shown], dtype=np.float64)
    return {
        "decoded_megapixels": _spread(own / 1e6),
        "network_megapixels": _spread(network / 1e6),
        "network_resize": f"short side {NETWORK.short_side}, long side up to {NETWORK.max_size}",
        "boxes_per_image": _spread(boxes.astype(np.float64)),
        "small_objects_share": float((sides < SMALL_SIDE).mean()) if len(sides) else None,
        "largest_masks_megabytes": max(
            len(record.labels) * width * height / 1e6
            for record, (width, height) in zip(records, sizes, strict=True)
        ),
        "padding_share": {
            str(batch): {
                "random": _padding(shown, plain_batches(_order(len(shown)), batch)),
                "grouped_by_aspect": _padding(
                    shown,
                    grouped_batches(_order(len(shown)), batch, [shape_of(*size) for size in sizes], 0),
                ),
            }
            for batch in SIMULATED_BATCHES
            if batch <= len(shown)
        },
    }


def _order(images: int) -> list[int]:
    return [int(index) for index in np.random.default_rng(0).permutation(images)]


def _padding(sizes: Sequence[tuple[int, int]], batches: Sequence[Sequence[int]]) -> float:
    """Share of the pixels of padded batches that belong to no image."""
    padded = filled = 0
    for batch in batches:
        width = max(sizes[index][0] for index in batch)
        height = max(sizes[index][1] for index in batch)
        padded += len(batch) * _whole(width) * _whole(height)
        filled += sum(sizes[index][0] * sizes[index][1] for index in batch)
    return 1 - filled / padded


def _whole(side: int) -> int:
    return -(-side // STRIDE) * STRIDE


def _spread(values: npt.NDArray[np.float64]) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "p95": float(np.quantile(values, 0.95)),
        "largest": float(values.max()),
    }
