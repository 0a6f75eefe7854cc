"""Which data sets exist, how one is opened by name, and which layout a folder has. Opening imports torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath

from detscope.config.schema import DataSettings
from detscope.data.contract import DatasetFormat, DetectionDataset, OpenRequest, Progress, Split
from detscope.data.download.prepare import Collection, count_download_bytes
from detscope.errors import InputError, UsageError
from detscope.parts import add_part, parts_of


def register_dataset(name: str, description: str, opener: Callable[[OpenRequest], DetectionDataset]) -> None:
    """Make a data set known in this process."""
    add_part("datasets", DatasetFormat(name, description, opener))


def list_datasets() -> tuple[DatasetFormat, ...]:
    """Every data set that can be opened by name, the smallest download first."""
    named = [part for part in parts_of("datasets", DatasetFormat) if part.open_named is not None]
    return tuple(sorted(named, key=lambda part: sum(map(count_download_bytes, part.collections))))


def list_collections() -> tuple[Collection, ...]:
    """Everything that `detscope data prepare` can bring."""
    return tuple(collection for dataset in list_datasets() for collection in dataset.collections)


def find_collection(name: str) -> Collection:
    """A collection by name."""
    known = {collection.name: collection for collection in list_collections()}
    if name not in known:
        hint = f"{_suggest_name(name, known)}there are: {', '.join(known)}"
        raise UsageError(f"cannot prepare {name!r}", hint)
    return known[name]


def open_dataset(
    settings: DataSettings,
    *,
    need_masks: bool = False,
    need_keypoints: bool = False,
    seed: int = 0,
    split: Split = "train",
    progress: Progress | None = None,
) -> DetectionDataset:
    """Open the data set that `settings` names, fetching or generating it where that is quick."""
    return open_request(OpenRequest(settings, need_masks, need_keypoints, seed, split, progress))


def open_request(request: OpenRequest) -> DetectionDataset:
    """Open what a request names: a registered data set, or a folder recognised by its content."""
    name = request.settings.name
    known = {dataset.name: dataset for dataset in list_datasets()}
    if name in known:
        open_named = known[name].open_named
        assert open_named is not None  # list_datasets() gives no others
        return open_named(request)
    folder = Path(name)
    if not folder.exists():
        hint = f"{_suggest_name(name, known)}there are: {', '.join(known)}, or a folder of your own"
        raise UsageError(f"unknown data set {name!r}", hint)
    open_folder = recognise_folder(folder).open_folder
    assert open_folder is not None  # as above
    return open_folder(
        folder, request, folder.name if folder.name not in ("", "..") else folder.resolve().name
    )


def recognise_folder(folder: Path) -> DatasetFormat:
    """Which layout a folder (or an annotation file) has, by what is where people put it."""
    for layout in parts_of("datasets", DatasetFormat):
        if layout.open_folder is not None and layout.recognises is not None and layout.recognises(folder):
            return layout
    if folder.is_file():
        raise InputError(
            f"{folder}: is a file and not a data set", "name a folder, a COCO JSON or a data.yaml"
        )
    raise InputError(
        f"{folder}: neither annotations nor images found",
        "known are COCO JSON, VOC folders, YOLO labels with data.yaml or classes.txt, and plain images",
    )


def class_names(dataset_or_weights: str, num_classes: int) -> tuple[str, ...]:
    """What labels mean, by data set or by a model's weights: `class_names("coco", 91)[18]` is "dog".

    0 is the background; where nothing is known, 7 is "class 7". `num_classes` counts the background as
    everywhere in the zoo; for the known sets the count without it (effdet's 90) is understood too, and the
    answer has the background all the same. Labels of COCO are its ids with their gaps, in torchvision and
    in effdet, whose first output is id 1; the zoo's adapter gives labels from 1 again.
    """
    # of a path only the file speaks: a folder called coco says nothing about the weights in it
    words = re.split(r"[^a-z0-9]+", PurePath(dataset_or_weights).name.lower())
    for dataset in reversed(list_datasets()):
        beginning = dataset.name.removesuffix("s")  # weights may be called "pet37"
        if any(word.startswith(beginning) for word in words):
            for names in dataset.class_lists:
                if num_classes == len(names) + 1 or (num_classes == len(names) > 1):
                    return ("background", *names)
    return ("background", *(f"class {label}" for label in range(1, num_classes)))


def _suggest_name(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""
