"""Folders with YOLO text labels: one line per object, `class x y width height` in shares of the image.

A line with more numbers is a polygon. Which images belong to which split is told by `data.yaml`, or by
folders named train and val; class names by `data.yaml` or `classes.txt`. An image without a label file
has no objects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detscope.data.annotations import (
    Annotations,
    BadAnnotationError,
    ImageRecord,
    Judge,
    ObjectRecord,
    Segmentation,
    SplitItems,
    box_area,
    divide_items,
    leads_out,
    make_record,
    parse_whole,
    read_lines,
    relative_name,
    require_name,
    shorten_value,
)
from detscope.data.contract import DatasetFormat, OpenRequest, Split, track_progress
from detscope.data.dataset import FolderDataset, join_images, read_image_size
from detscope.data.images import SUFFIXES
from detscope.errors import InputError, UsageError
from detscope.limits import require_within

_YAML_HINT = "expected train: and val: as names of folders, and names: as a list of texts"
_NAME_FILES = ("classes.txt", "obj.names", "labels/classes.txt")
_FOLDERS: dict[Split, tuple[str, ...]] = {"train": ("train", "train2017"), "val": ("val", "valid", "test")}
_Lines = list[tuple[int, list[str]]]  # of a label file: numbers from 1, and words


def open_yolo_folder(folder: Path, request: OpenRequest, name: str) -> FolderDataset:
    """Open a folder with YOLO text labels."""
    if request.need_keypoints:
        raise UsageError(
            f"data set {name} has no keypoints, which this model needs",
            "choose a model without keypoints, or COCO's keypoint annotations",
        )
    described = _find_yaml(folder)
    content = _read_yaml(described) if described is not None else {}
    base = folder.parent if folder.is_file() else folder
    classes = _read_class_names(content, base)
    own, other = (_list_split(base, content, which) for which in (request.split, request.other_split))
    split = SplitItems(tuple(own), tuple(other))
    if not (own and other):  # divided by us
        everything = [*own, *other] or _list_images(base)
        if not everything:
            raise InputError(
                f"{folder}: no images found beside its labels",
                "expected images/ beside labels/, with the same names",
            )
        split = divide_items({str(image): image for image in everything}, request)
    judge = Judge(request.skip_bad)
    images = split.items[: request.settings.images]
    lines = {image: _read_label_lines(image, base, judge) for image in images}
    if not classes:  # they are called by their numbers; labels of both splits tell how many there are
        others = (_read_label_lines(image, base, judge) for image in split.others)
        words = (words[0] for found in (*lines.values(), *others) for _, words in found)
        highest = max((int(word) for word in words if word.isascii() and word.isdecimal()), default=-1)
        if highest < 0:
            raise InputError(
                f"{folder}: no labels and no class names found", "add a data.yaml or classes.txt"
            )
        require_within("classes", highest + 1, f"{folder}")
        classes = tuple(f"class {number}" for number in range(highest + 1))
    records = tuple(
        _make_yolo_record(number, image, base, lines[image], len(classes), judge, request.need_masks)
        for number, image in track_progress(
            enumerate(images, start=1), len(images), "reading labels", request.progress
        )
    )
    annotations = Annotations(
        ("background", *classes), tuple(range(len(classes))), records, tuple(judge.problems), split.notes
    )
    return join_images(name, base, annotations, request)


def _read_label_lines(image: Path, base: Path, judge: Judge) -> _Lines:
    path = find_label_file(image)
    if not path.is_file():
        return []
    try:
        require_within("label_bytes", path.stat().st_size, "is too large")
        lines = path.read_text(encoding="utf-8").splitlines()
        require_within("image_objects", len(lines), "is too long")
    except (OSError, UnicodeDecodeError, InputError) as error:
        reason = error.message if isinstance(error, InputError) else "cannot be read as text"
        judge.report_problem(relative_name(image, base), None, f"label file {path.name} {reason}")
        return []
    return [(number, line.split()) for number, line in enumerate(lines, start=1) if line.strip()]


def _make_yolo_record(
    number: int, image: Path, base: Path, lines: _Lines, class_count: int, judge: Judge, need_masks: bool
) -> ImageRecord:
    name = relative_name(image, base)
    width, height = read_image_size(image)
    if width is None or height is None:  # an image that cannot be read is judged when images are
        return make_record(number, name, (None, None), (), with_masks=need_masks)
    size = (width, height)

    def read_object(line: int, words: list[str]) -> ObjectRecord:
        label, shares = _parse_line(words)
        if not 0 <= label < class_count:
            raise BadAnnotationError(f"unknown class {label}")
        points = np.array(shares).reshape(-1, 2) * np.array(size)
        is_box = len(shares) == 4
        first, last = points.min(axis=0), points.max(axis=0)
        if is_box:  # a centre and a size
            first, last = points[0] - points[1] / 2, points[0] + points[1] / 2
        corners = (float(first[0]), float(first[1]), float(last[0]), float(last[1]))
        box = judge.judge_box(corners, size, name, line)
        if need_masks and is_box:
            raise BadAnnotationError("has no polygon, which this model needs")
        mask = Segmentation(polygons=(points.ravel(),)) if need_masks else None
        return ObjectRecord(box, label + 1, box_area(box), line, segmentation=mask)

    return make_record(
        number, name, size, judge.collect_objects(name, lines, read_object), with_masks=need_masks
    )


def _parse_line(words: Sequence[str]) -> tuple[int, list[float]]:
    try:
        label, shares = int(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        raise BadAnnotationError("line is not a class and numbers") from None
    if len(shares) != 4 and (len(shares) < 6 or len(shares) % 2):
        raise BadAnnotationError(f"line has {len(shares)} numbers after the class, not 4 or pairs")
    if not all(math.isfinite(share) for share in shares):
        raise BadAnnotationError("box has values that are not finite")
    return label, shares


def is_yolo(folder: Path) -> bool:
    """Whether a folder holds YOLO labels, or a file describes such a folder."""
    if _find_yaml(folder) is not None or any((folder / name).is_file() for name in _NAME_FILES):
        return True
    if next((folder / "labels").glob("**/*.txt"), None) is not None:
        return True
    return any(find_label_file(image).is_file() for image in _list_images(folder, deep=False))


def find_label_file(image: Path) -> Path:
    """Labels stand in `labels/` where images stand in `images/`, or beside the image."""
    beside = image.with_suffix(".txt")
    parts = list(image.parts)
    if "images" not in parts[:-1]:
        return beside
    parts[len(parts) - 2 - parts[-2::-1].index("images")] = "labels"
    there = Path(*parts).with_suffix(".txt")
    return there if there.is_file() or not beside.is_file() else beside


def _find_yaml(folder: Path) -> Path | None:
    if folder.is_file():
        return folder if folder.suffix in (".yaml", ".yml") else None
    usual = (folder / name for name in ("data.yaml", "data.yml", "dataset.yaml"))
    places = (*usual, *sorted(folder.glob("*.y*ml")))
    return next((path for path in places if path.is_file() and "names" in _read_yaml(path)), None)


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        require_within("description_bytes", path.stat().st_size, f"{path}")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if node is None:
            return {}
        require_within("yaml_nodes", _count_repeated(node), f"{path}")
        content = loader.construct_document(node)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise InputError(f"{path}: is not YAML: {type(error).__name__}", "correct the file") from None
    if not isinstance(content, dict) and path.stem in ("data", "dataset"):
        raise InputError(f"{path}: has no keys", _YAML_HINT)
    return content if isinstance(content, dict) else {}


def _count_repeated(root: Any) -> int:
    """Values that a document stands for, with everything that aliases repeat; a circle has no number."""
    counts: dict[int, int] = {}
    waiting = [(root, False)]
    while waiting:
        node, counted = waiting.pop()
        pairs = node.value if isinstance(node.value, list) else []
        below = [part for pair in pairs for part in (pair if isinstance(pair, tuple) else (pair,))]
        if counted:
            counts[id(node)] = 1 + sum(counts[id(part)] for part in below)
        elif counts.get(id(node)) == 0:
            raise ValueError("an alias leads back to itself")
        elif id(node) not in counts:
            counts[id(node)] = 0
            waiting.append((node, True))
            waiting.extend((part, False) for part in below if counts.get(id(part), 0) == 0)
    return counts[id(root)]


def _read_class_names(content: dict[str, Any], base: Path) -> tuple[str, ...]:
    """Names of the YAML file, else of a file with one name per line; empty where there are none."""
    names = content.get("names")
    if isinstance(names, dict):
        try:
            by_number = {parse_whole(number): _parse_class_name(name, base) for number, name in names.items()}
        except ValueError:
            raise InputError(f"{base}: class numbers in its YAML file are not numbers", _YAML_HINT) from None
        last = max(by_number, default=-1)
        require_within("classes", last + 1, f"{base}")
        return tuple(by_number.get(number, f"class {number}") for number in range(last + 1))
    if names is not None and not isinstance(names, list):
        raise InputError(f"{base}: names in its YAML file is {shorten_value(names)}", _YAML_HINT)
    if names:
        return tuple(_parse_class_name(name, base) for name in names)
    for name in _NAME_FILES:
        if (base / name).is_file():
            lines = read_lines(base / name)
            require_within("classes", len(lines), f"{base / name}")
            return tuple(lines)
    return ()


def _parse_class_name(name: Any, base: Path) -> str:
    """Numbers and truth values are names too: YAML reads `on` as one."""
    if isinstance(name, list | dict):
        raise InputError(
            f"{base}: a class name in its YAML file is {shorten_value(name)}", "write names as texts"
        )
    try:
        return require_name(str(name))
    except ValueError as error:
        raise InputError(f"{base}: a class name in its YAML file: {error}", _YAML_HINT) from None


def _list_split(base: Path, content: dict[str, Any], split: Split) -> list[Path]:
    """Images of a split by `data.yaml`, else by the names of folders."""
    given = content.get(split) or (content.get("test") if split == "val" else None)
    if given is not None:
        texts = given if isinstance(given, list) else [given]
        root = content.get("path")
        wrong = [value for value in (*texts, root or "") if not isinstance(value, str)]
        if wrong:
            raise InputError(
                f"{base}: {split} in its YAML file is {shorten_value(wrong[0])}, not the name of a folder",
                _YAML_HINT,
            )
        found = [image for text in texts for image in _expand_entry(text, base, root)]
        if not found and split != "val":
            named = ", ".join(shorten_value(text) for text in texts)
            raise InputError(f"{base}: no images in {named}, its YAML file's {split}", _YAML_HINT)
        return found
    places = (
        place
        for name in _FOLDERS[split]
        for place in (base / "images" / name, base / name / "images", base / name)
    )
    return next((images for place in places if (images := _list_images(place))), [])


def _expand_entry(text: str, base: Path, root: str | None) -> Iterator[Path]:
    """A folder of images or a file that lists them; exporters write paths from several places."""
    for name in (text, root or "."):
        try:
            require_name(name)
        except ValueError as error:
            raise InputError(f"{base}: a folder in its YAML file: {error}", _YAML_HINT) from None
    places = [base / (root or ""), base]
    for place in (*(start / text for start in places), base / text.removeprefix("../").removeprefix("./")):
        if place.is_dir():
            yield from _list_images(place)
            return
        if place.is_file():
            for line in read_lines(place, "annotation_bytes"):
                if leads_out(line, place.parent, (*places, place.parent)):
                    raise InputError(
                        f"{place}: {line[:80]} leads out of the data set",
                        "name the folder that holds the images as `path:` in its YAML file",
                    )
                yield place.parent / line
            return


def _list_images(folder: Path, deep: bool = True) -> list[Path]:
    if not folder.is_dir():
        return []
    paths = folder.rglob("*") if deep else folder.iterdir()
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES)


PART = DatasetFormat(
    "yolo", "folders with YOLO text labels", open_folder=open_yolo_folder, recognises=is_yolo, order=4
)
