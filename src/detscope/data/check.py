"""Looks at a whole data set and tells what is wrong with it and what it is like. Changes nothing."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from detscope.config.schema import DataSettings
from detscope.data.annotations import ImageRecord, Size
from detscope.data.contract import OpenRequest, Progress, Split, track_progress
from detscope.data.dataset import FolderDataset
from detscope.data.download.prepare import find_prepared
from detscope.data.images import ImageError, read_image_file, require_annotated_size, verify_image
from detscope.data.loading import View, classify_shape, count_cores, group_batches, split_batches
from detscope.data.registry import list_collections, list_datasets, open_request, recognise_folder
from detscope.errors import InputError

# The default of torchvision's R-CNNs: short side 800, long side up to 1333, padded to whole 32s.
NETWORK = View(short_side=800, max_size=1333)
STRIDE = 32
SIMULATED_BATCHES = (2, 8)
# COCO's borders between small, medium and large objects, as sides of a square
SMALL_SIDE, MEDIUM_SIDE = 32, 96

Histogram = dict[str, Any]
Sizes = Sequence[tuple[int, int]]

ERROR, NOTE = "error", "note"
_CHUNK = 32  # images that a process takes at a time


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


@dataclass(frozen=True)
class DataFinding:
    """One thing that a person should know; an error stops a training, a note does not."""

    kind: str
    split: str
    image: str
    annotation_id: int | None
    reason: str


@dataclass(frozen=True)
class CheckReport:
    """All findings, a line per image, and figures; plain values only."""

    name: str
    layout: str
    splits: dict[str, int]  # images of each
    classes: tuple[str, ...]
    findings: tuple[DataFinding, ...]
    images: tuple[dict[str, Any], ...]
    duplicates: tuple[dict[str, Any], ...]
    figures: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def errors(self) -> int:
        """Findings that stop a training."""
        return sum(finding.kind == ERROR for finding in self.findings)


@dataclass(frozen=True)
class ImageCheck:
    """What an image file turned out to be."""

    file_name: str
    problem: str | None = None
    width: int | None = None
    height: int | None = None
    file_format: str = ""
    mode: str = ""
    turned: bool = False  # by its EXIF orientation
    size_bytes: int = 0
    digest: str = ""


class CheckedImage(NamedTuple):
    """An image of a split with its annotations, its path and what its file turned out to be."""

    split: Split
    record: ImageRecord
    path: Path
    check: ImageCheck


def check_dataset(
    name: str, root: str = "data", *, workers: int | None = None, progress: Progress | None = None
) -> CheckReport:
    """Check a data set by name, or a folder of one's own, both splits."""
    published = {collection.name: collection for collection in list_collections()}
    if name == "pets" and find_prepared(published[name], Path(root)) is None:
        raise InputError(f"{name} is not in {root}", f"fetch it with `detscope data prepare {name}`")
    known = {*published, *(dataset.name for dataset in list_datasets())}
    layout = recognise_folder(Path(name)).name if name not in known and Path(name).exists() else name
    settings = DataSettings(name=name, root=root)
    splits: tuple[Split, ...] = ("val",) if layout == "images" else ("train", "val")
    opened = {
        split: cast(
            FolderDataset,
            open_request(OpenRequest(settings, split=split, progress=progress, checking=True)),
        )
        for split in splits
    }
    images = _check_files(opened, workers, progress)
    findings: list[DataFinding] = []
    for split, dataset in opened.items():
        for problem in dataset.problems:
            kind = NOTE if problem.action == "noted" else ERROR
            findings.append(DataFinding(kind, split, problem.image, problem.annotation_id, problem.reason))
        for record in dataset.records:
            rows = np.column_stack([record.boxes, record.labels])
            repeated = len(rows) - len(np.unique(rows, axis=0))
            if repeated:
                reason = f"{repeated} boxes are there twice, with the same class"
                findings.append(DataFinding(NOTE, split, record.file_name, None, reason))
    findings += (finding for split in splits for finding in _judge_files(split, opened[split], images))
    first = opened[splits[0]]
    return CheckReport(
        name=first.name,
        layout=layout,
        splits={split: len(dataset) for split, dataset in opened.items()},
        classes=first.classes[1:],
        findings=tuple(dict.fromkeys(findings)),
        images=tuple(
            {
                "split": split,
                "image": record.file_name,
                "image_id": record.image_id,
                "width": check.width,
                "height": check.height,
                "format": check.file_format,
                "mode": check.mode,
                "turned_by_exif": check.turned,
                "bytes": check.size_bytes,
                "boxes": len(record.labels),
                "crowd": int(record.crowd.sum()),
                "difficult": int(record.difficult.sum()),
                "problem": check.problem or "",
            }
            for split, record, _, check in images
        ),
        duplicates=_find_duplicates(images),
        figures=_compute_figures(images, first.classes),
        notes=tuple(dict.fromkeys(note for dataset in opened.values() for note in dataset.notes)),
    )


def _check_files(
    opened: dict[Split, FolderDataset], workers: int | None, progress: Progress | None
) -> list[CheckedImage]:
    """A look at every image, once, though it may be in both splits."""
    checks: dict[Path, ImageCheck] = {}
    for dataset in opened.values():
        folder = dataset.images_folder
        wanted = [
            (one.file_name, (one.width, one.height))
            for one in dataset.records
            if folder / one.file_name not in checks
        ]
        for check in check_images(folder, wanted, workers, progress):
            checks[folder / check.file_name] = check
    return [
        CheckedImage(split, record, path, checks[path])
        for split, dataset in opened.items()
        for record in dataset.records
        for path in [dataset.images_folder / record.file_name]
    ]


def _judge_files(
    split: Split, dataset: FolderDataset, images: Sequence[CheckedImage]
) -> Iterator[DataFinding]:
    home = dataset.images_folder.resolve()
    linked = []
    for image in images:
        if image.split != split:
            continue
        if image.check.problem is not None:
            yield DataFinding(ERROR, split, image.record.file_name, None, image.check.problem)
        if image.path.is_symlink() and not image.path.resolve().is_relative_to(home):
            linked.append(image.record.file_name)
    if linked:
        reason = f"{len(linked)} image files are links that lead out of the data set, this is the first"
        yield DataFinding(NOTE, split, linked[0], None, reason)


def _find_duplicates(images: Sequence[CheckedImage]) -> tuple[dict[str, Any], ...]:
    """Files of the same content; one that is trained on and evaluated on makes accuracy look better."""
    by_content: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for image in images:
        if image.check.digest:
            by_content[image.check.digest].setdefault(image.record.file_name, set()).add(image.split)
    return tuple(
        {
            "files": sorted(files),
            # files that are all in the very same splits repeat each other inside each of them
            "across_splits": len({frozenset(splits) for splits in files.values()}) > 1,
        }
        for files in by_content.values()
        if len(files) > 1
    )


def _compute_figures(images: Sequence[CheckedImage], classes: Sequence[str]) -> dict[str, Any]:
    """Over all images that can be opened, each once."""
    once: dict[Path, CheckedImage] = {}
    for image in images:
        once.setdefault(image.path, image)
    usable = [image for image in once.values() if image.check.problem is None]
    modes = Counter(f"{image.check.file_format} {image.check.mode}" for image in usable)
    sizes = [(image.check.width or 1, image.check.height or 1) for image in usable]
    return {
        "images": len(once),
        "usable_images": len(usable),
        "turned_by_exif": sum(image.check.turned for image in usable),
        "formats": dict(modes.most_common()),
        **describe_images([image.record for image in usable], sizes, classes),
    }


def check_image(folder: str, image: tuple[str, Size]) -> ImageCheck:
    """Read, hash and decode one image; given are its name and the size its annotations were made for."""
    name, annotated = image
    path = Path(folder) / name
    digest, size_bytes = "", 0
    try:
        raw = read_image_file(path)
        digest, size_bytes = hashlib.blake2b(raw, digest_size=16).hexdigest(), len(raw)
        facts = verify_image(raw, str(path))
        require_annotated_size(facts, str(path), *annotated)
    except ImageError as error:
        reason = error.message.removeprefix(f"{path}: ")
        return ImageCheck(name, reason, size_bytes=size_bytes, digest=digest)
    turned = (facts.width, facts.height) != (facts.stored_width, facts.stored_height)
    return ImageCheck(
        name, None, facts.width, facts.height, facts.file_format, facts.mode, turned, size_bytes, digest
    )


def check_images(
    folder: Path,
    images: Sequence[tuple[str, Size]],
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[ImageCheck]:
    """Check every image; a few are looked at in this process, many in several."""
    work, workers = partial(check_image, str(folder)), count_cores() if workers is None else workers
    track = partial(track_progress, total=len(images), what="opening images", progress=progress)
    if workers < 2 or len(images) < 4 * _CHUNK:
        return list(track(map(work, images)))
    # forking is quick, but not beside torch's threads
    quick = "torch" not in sys.modules and "fork" in multiprocessing.get_all_start_methods()
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork" if quick else "spawn")) as pool:
            return list(track(pool.map(work, images, chunksize=_CHUNK)))
    except BrokenProcessPool:
        raise InputError(
            "a process that decoded images died", "some image crashes the decoder or fills the memory"
        ) from None
