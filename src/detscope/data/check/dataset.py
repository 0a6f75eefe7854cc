"""Looks at a whole data set and tells what is wrong with it and what it is like. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from detscope.config.schema import DataSettings
from detscope.data.annotations.records import ImageRecord
from detscope.data.catalog import COLLECTIONS
from detscope.data.check.figures import describe
from detscope.data.check_images import Look, ToLook, look_at_all
from detscope.data.contract import Progress
from detscope.data.dataset import CocoLayoutDataset
from detscope.data.download.prepare import is_prepared
from detscope.data.formats.own import recognise
from detscope.data.registry import OpenRequest, Split, open_request
from detscope.errors import InputError

ERROR, NOTE = "error", "note"
_SPLITS: tuple[Split, Split] = ("train", "val")


@dataclass(frozen=True)
class Finding:
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
    findings: tuple[Finding, ...]
    images: tuple[dict[str, Any], ...]
    duplicates: tuple[dict[str, Any], ...]
    figures: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def errors(self) -> int:
        """Findings that stop a training."""
        return sum(finding.kind == ERROR for finding in self.findings)


def check_dataset(
    name: str, root: str = "data", *, workers: int | None = None, progress: Progress | None = None
) -> CheckReport:
    """Check a data set by name, or a folder of one's own, both splits."""
    layout = _layout(name, root)
    settings = DataSettings(name=name, root=root)
    splits: tuple[Split, ...] = ("val",) if layout == "images" else _SPLITS
    opened = {
        split: cast(
            CocoLayoutDataset,
            open_request(OpenRequest(settings, split=split, progress=progress, checking=True)),
        )
        for split in splits
    }
    looks = _look(opened, workers, progress)
    findings = [
        *(finding for split, dataset in opened.items() for finding in _of_annotations(split, dataset)),
        *(finding for split, dataset in opened.items() for finding in _of_images(split, dataset, looks)),
    ]
    duplicates = _duplicates(opened, looks)
    first = next(iter(opened.values()))
    return CheckReport(
        name=first.name,
        layout=layout,
        splits={split: len(dataset) for split, dataset in opened.items()},
        classes=first.classes[1:],
        findings=tuple(dict.fromkeys(findings)),
        images=tuple(_rows(opened, looks)),
        duplicates=duplicates,
        figures=_figures(list(opened.values()), looks),
        notes=tuple(dict.fromkeys(note for dataset in opened.values() for note in dataset.notes)),
    )


def _layout(name: str, root: str) -> str:
    published = {collection.name: collection for collection in COLLECTIONS}
    if name == "synthetic":
        return name
    if name not in published:
        return recognise(Path(name)) if Path(name).exists() else name
    if name == "pets" and is_prepared(published[name], Path(root)) is None:
        raise InputError(f"{name} is not in {root}", f"fetch it with `detscope data prepare {name}`")
    return name


def _look(
    opened: dict[Split, CocoLayoutDataset], workers: int | None, progress: Progress | None
) -> dict[str, Look]:
    """A look at every image, once, though it may be in both splits."""
    looks: dict[str, Look] = {}
    for dataset in opened.values():
        wanted = [
            ToLook(record.file_name, record.width, record.height)
            for record in dataset.records
            if str(dataset.images_folder / record.file_name) not in looks
        ]
        for look in look_at_all(dataset.images_folder, wanted, workers, progress):
            looks[str(dataset.images_folder / look.file_name)] = look
    return looks


def _look_of(dataset: CocoLayoutDataset, record: ImageRecord, looks: dict[str, Look]) -> Look:
    return looks[str(dataset.images_folder / record.file_name)]


def _of_annotations(split: str, dataset: CocoLayoutDataset) -> list[Finding]:
    found = [
        Finding(
            NOTE if problem.action == "noted" else ERROR,
            split,
            problem.image,
            problem.annotation_id,
            problem.reason,
        )
        for problem in dataset.problems
    ]
    for record in dataset.records:
        rows = np.column_stack([record.boxes, record.labels])
        repeated = len(rows) - len(np.unique(rows, axis=0))
        if repeated:
            reason = f"{repeated} boxes are there twice, with the same class"
            found.append(Finding(NOTE, split, record.file_name, None, reason))
    return found


def _of_images(split: str, dataset: CocoLayoutDataset, looks: dict[str, Look]) -> list[Finding]:
    found = []
    for record in dataset.records:
        problem = _look_of(dataset, record, looks).problem
        if problem is not None:
            found.append(Finding(ERROR, split, record.file_name, None, problem))
    linked = [record.file_name for record in dataset.records if _links_out(dataset, record)]
    if linked:
        reason = f"{len(linked)} image files are links that lead out of the data set, this is the first"
        found.append(Finding(NOTE, split, linked[0], None, reason))
    return found


def _links_out(dataset: CocoLayoutDataset, record: ImageRecord) -> bool:
    path = dataset.images_folder / record.file_name
    return path.is_symlink() and not path.resolve().is_relative_to(dataset.images_folder.resolve())


def _duplicates(opened: dict[Split, CocoLayoutDataset], looks: dict[str, Look]) -> tuple[dict[str, Any], ...]:
    """Files of the same content; one that is trained on and evaluated on makes accuracy look better."""
    by_content: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for split, dataset in opened.items():
        for record in dataset.records:
            path = str(dataset.images_folder / record.file_name)
            if looks[path].digest:
                by_content[looks[path].digest].setdefault(record.file_name, set()).add(split)
    return tuple(
        {
            "files": sorted(files),
            "across_splits": len(set().union(*files.values())) > 1 and _same(files) is False,
        }
        for files in by_content.values()
        if len(files) > 1
    )


def _same(files: dict[str, set[str]]) -> bool:
    """Whether all files are in the very same splits: then they repeat each other inside each of them."""
    return len({frozenset(splits) for splits in files.values()}) == 1


def _rows(opened: dict[Split, CocoLayoutDataset], looks: dict[str, Look]) -> list[dict[str, Any]]:
    rows = []
    for split, dataset in opened.items():
        for record in dataset.records:
            look = _look_of(dataset, record, looks)
            rows.append(
                {
                    "split": split,
                    "image": record.file_name,
                    "image_id": record.image_id,
                    "width": look.width,
                    "height": look.height,
                    "format": look.file_format,
                    "mode": look.mode,
                    "turned_by_exif": look.turned,
                    "bytes": look.size_bytes,
                    "boxes": len(record.labels),
                    "crowd": int(record.crowd.sum()),
                    "difficult": int(record.difficult.sum()),
                    "problem": look.problem or "",
                }
            )
    return rows


def _figures(datasets: Sequence[CocoLayoutDataset], looks: dict[str, Look]) -> dict[str, Any]:
    """Over all images that can be opened, each once."""
    records: dict[str, ImageRecord] = {}
    for dataset in datasets:
        for record in dataset.records:
            records.setdefault(str(dataset.images_folder / record.file_name), record)
    usable = [path for path in records if looks[path].problem is None]
    sizes = [(looks[path].width or 1, looks[path].height or 1) for path in usable]
    figures = describe([records[path] for path in usable], sizes, datasets[0].classes)
    modes: dict[str, int] = defaultdict(int)
    for path in usable:
        modes[f"{looks[path].file_format} {looks[path].mode}"] += 1
    return {
        "images": len(records),
        "usable_images": len(usable),
        "turned_by_exif": sum(looks[path].turned for path in usable),
        "formats": dict(sorted(modes.items(), key=lambda item: -item[1])),
        **figures,
    }
