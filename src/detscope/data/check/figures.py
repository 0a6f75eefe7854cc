"""What a data set is like: counts, histograms, and what of it a training will pay for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.annotations.records import ImageRecord
from detscope.data.loading.order import classify_shape, group_batches, split_batches
from detscope.data.loading.views import View

# The default of torchvision's R-CNNs: short side 800, long side up to 1333, padded to whole 32s.
NETWORK = View(short_side=800, max_size=1333)
STRIDE = 32
SIMULATED_BATCHES = (2, 8)
# COCO's borders between small, medium and large objects, as sides of a square
SMALL_SIDE, MEDIUM_SIDE = 32, 96

Histogram = dict[str, Any]
Sizes = Sequence[tuple[int, int]]


def describe_images(records: Sequence[ImageRecord], sizes: Sizes, classes: Sequence[str]) -> dict[str, Any]:
    """Counts, histograms and costs of the images that can be opened, with their sizes as shown."""
    boxes = np.array([len(record.labels) for record in records], dtype=np.int64)
    spans = np.concatenate([np.zeros((0, 2)), *(one.boxes[:, 2:] - one.boxes[:, :2] for one in records)])
    sides = np.sqrt(spans.prod(axis=1))
    labels = np.concatenate([np.zeros(0, np.int64), *(record.labels for record in records)])
    counts = np.bincount(labels, minlength=len(classes))[1:] if len(classes) > 1 else np.zeros(0, np.int64)
    order = np.argsort(-counts, kind="stable")
    return {
        "objects": int(boxes.sum()),
        "crowd": int(sum(record.crowd.sum() for record in records)),
        "difficult": int(sum(record.difficult.sum() for record in records)),
        "images_without_objects": int((boxes == 0).sum()),
        "histograms": {
            "image_size": _count_ranges(
                [width * height / 1e6 for width, height in sizes],
                [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8],
                "megapixels",
            ),
            "boxes_per_image": _count_ranges(
                boxes,
                [1, 2, 3, 5, 10, 20, 50, 100],
                "number of images",
                ["0", "1", "2", "3 to 4", "5 to 9", "10 to 19", "20 to 49", "50 to 99", "100 or more"],
            ),
            "box_size": _count_ranges(
                sides, [8, 16, SMALL_SIDE, 64, MEDIUM_SIDE, 192, 384], "square root of the area, pixels"
            ),
            "classes": {
                "labels": [classes[place + 1] for place in order],
                "counts": counts[order].tolist(),
                "unit": "objects",
            },
        },
        "cost": _estimate_cost(records, sizes, boxes, sides) if sizes else {},
    }


def _count_ranges(
    values: npt.ArrayLike, edges: Sequence[float], unit: str, labels: Sequence[str] | None = None
) -> Histogram:
    """A histogram without empty bars at either end."""
    if labels is None:
        between = (f"{low:g} to {high:g}" for low, high in pairwise(edges))
        labels = [f"< {edges[0]:g}", *between, f">= {edges[-1]:g}"]
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(labels)).tolist()
    filled = [place for place, count in enumerate(counts) if count]
    part = slice(filled[0], filled[-1] + 1) if filled else slice(0, 0)
    return {"labels": list(labels[part]), "counts": counts[part], "unit": unit}


def _estimate_cost(
    records: Sequence[ImageRecord],
    sizes: Sizes,
    boxes: npt.NDArray[np.int64],
    sides: npt.NDArray[np.float64],
) -> dict[str, Any]:
    shown = [NETWORK.scale_size(width, height) for width, height in sizes]
    shapes = [classify_shape(*size) for size in sizes]
    order = np.random.default_rng(0).permutation(len(shown)).tolist()
    return {
        "decoded_megapixels": _summarize_spread([width * height / 1e6 for width, height in sizes]),
        "network_megapixels": _summarize_spread([width * height / 1e6 for width, height in shown]),
        "network_resize": f"short side {NETWORK.short_side}, long side up to {NETWORK.max_size}",
        "boxes_per_image": _summarize_spread(boxes),
        "small_objects_share": float((sides < SMALL_SIDE).mean()) if len(sides) else None,
        "largest_masks_megabytes": max(
            len(record.labels) * width * height / 1e6
            for record, (width, height) in zip(records, sizes, strict=True)
        ),
        "padding_share": {
            str(batch): {
                "random": measure_padding(shown, split_batches(order, batch)),
                "grouped_by_aspect": measure_padding(shown, group_batches(order, batch, shapes, 0)),
            }
            for batch in SIMULATED_BATCHES
            if batch <= len(shown)
        },
    }


def measure_padding(sizes: Sizes, batches: Sequence[Sequence[int]]) -> float:
    """Share of the pixels of padded batches that belong to no image."""
    padded = filled = 0
    for batch in batches:
        width, height = (-(-max(sizes[one][axis] for one in batch) // STRIDE) * STRIDE for axis in (0, 1))
        padded += len(batch) * width * height
        filled += sum(sizes[one][0] * sizes[one][1] for one in batch)
    return 1 - filled / padded


def _summarize_spread(values: npt.ArrayLike) -> dict[str, float]:
    given = np.asarray(values, dtype=np.float64)
    spread = {"median": np.median(given), "p95": np.quantile(given, 0.95), "largest": given.max()}
    return {name: float(value) for name, value in spread.items()}
