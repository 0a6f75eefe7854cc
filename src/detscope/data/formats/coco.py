"""COCO 2017 as it is published, and anybody's own folder in COCO's layout.

Annotation files (`instances_*.json`, `person_keypoints_*.json`) are read to one record per image.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.data.annotations import (
    HINT,
    LARGEST_SIDE,
    Annotations,
    BadAnnotationError,
    ImageRecord,
    Judge,
    ObjectRecord,
    Size,
    box_area,
    draw_names,
    held_out_note,
    leads_out,
    make_record,
    parse_number,
    parse_segmentation,
    parse_whole,
    require_mask_size,
    require_name,
    shorten_value,
)
from detscope.data.contract import DatasetFormat, OpenRequest, Split
from detscope.data.dataset import FolderDataset, join_images, read_image_size
from detscope.data.download.prepare import Archive, Collection
from detscope.errors import InputError
from detscope.limits import read_within_limit, require_within

Row = dict[str, Any]  # of an annotation file, not judged yet
Wanted = Callable[[list[Row]], list[Row]]

FOLDER = "coco"
_OTHER_KINDS = ("captions", "stuff", "panoptic", "image_info")  # files of COCO that are no boxes
_SNIFFED_BYTES = 2**16
_ROLES: dict[Split, tuple[str, ...]] = {"train": ("train",), "val": ("val", "test")}
_MOST_BYTES_READ_SLOWLY = 64 * 2**20  # json's decoder is deaf to Ctrl-C for a second or two of it
_MOST_POINTS = 1000  # keypoints of one object


@dataclass(frozen=True)
class AnnotationFile:
    """The file of a split; one that holds both splits is divided by us."""

    path: Path
    split_by_us: bool = False
    note: str = ""


def open_coco(request: OpenRequest) -> FolderDataset:
    """Open COCO 2017 from where it was prepared."""
    root = Path(request.settings.root)
    for folder in (root / FOLDER, root, root / "COCO", root / "coco2017"):
        if next((folder / "annotations").glob("instances_*.json"), None) is not None:
            return open_coco_folder(folder, request, "coco")
    raise InputError(
        f"COCO is not in {request.settings.root}",
        "fetch it with `detscope data prepare coco`, or name its folder with --set data.root=DIR",
    )


def open_coco_folder(folder: Path, request: OpenRequest, name: str) -> FolderDataset:
    """Open a folder (or one annotation file) in COCO's layout."""
    files = [folder] if folder.is_file() else list(find_annotation_files(folder))
    base = folder.parent if folder.is_file() else folder
    chosen = choose_file(files, request.split, request.need_keypoints)
    content = load_json(chosen.path)

    def pick_split(images: list[Row]) -> list[Row]:
        names = draw_names([str(image["file_name"]) for image in images], request)
        return [image for image in images if str(image["file_name"]) in names]

    return open_coco_file(
        name,
        find_images_folder(base, chosen.path, content),
        chosen.path,
        request,
        wanted=pick_split if chosen.split_by_us else None,
        content=content,
        note=held_out_note(request) if chosen.split_by_us else chosen.note,
        home=base,
    )


def open_coco_file(
    name: str,
    images_folder: Path,
    path: Path,
    request: OpenRequest,
    *,
    wanted: Wanted | None = None,
    content: Any = None,
    note: str = "",
    home: Path | None = None,
) -> FolderDataset:
    """Open a folder of images and an annotation file; `wanted` picks images, `content` is the file loaded.

    `home` is the data set's folder, where it is more than that of the images: no file name leads out of it.
    """
    content = load_json(path) if content is None else content
    lists: list[list[Row]] = []
    for key in ("images", "annotations", "categories"):
        value = content.get(key) if isinstance(content, Mapping) else None
        if not isinstance(value, list):
            raise InputError(f"{path}: not in COCO layout: {key!r} is missing or not a list", HINT)
        lists.append(value)
    images, annotations, categories = lists
    require_within("classes", len(categories), f"{path}")
    judge = Judge(request.skip_bad)
    try:
        classes = sorted(_read_classes(categories, judge).items())
        known = _find_usable_images(images, judge, images_folder, home or images_folder)
        chosen = sorted(wanted(known) if wanted else known, key=lambda image: parse_whole(image["id"]))
        by_image = _group_by_image(annotations, chosen[: request.settings.images], path)
        _note_strays(annotations, known, judge)
        # the keypoints of the category that has most of them
        points = max((list(one.get("keypoints") or ()) for one in categories), key=len, default=[])
        if len(points) > _MOST_POINTS or not all(isinstance(point, str) for point in points):
            raise ValueError(f"keypoints are not at most {_MOST_POINTS} names")
        labels = {category_id: label for label, (category_id, _) in enumerate(classes, start=1)}
        reader = _CocoReader(labels, len(points), request, images_folder, judge)
        records = tuple(reader.read_image(image, rows) for image, rows in by_image)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__} {error!s:.100}"
        raise InputError(f"{path}: not in COCO layout: {what}", HINT) from error
    read = Annotations(
        ("background", *(name for _, name in classes)),
        tuple(number for number, _ in classes),
        records,
        tuple(judge.problems),
        (note,) if note else (),
        mirror_points(points),
    )
    return join_images(name, images_folder, read, request)


def is_coco(folder: Path) -> bool:
    """Whether a folder holds annotation files of COCO's kind, or is one."""
    if folder.is_file():
        return folder.suffix == ".json"
    return next(find_annotation_files(folder), None) is not None


def find_annotation_files(folder: Path) -> Iterator[Path]:
    """Annotation files with boxes, where people put them."""
    splits = [folder / name for name in ("train", "valid", "val", "test")]
    for place in (folder / "annotations", folder, *splits):
        for path in sorted(place.glob("*.json")) if place.is_dir() else ():
            if path.name.startswith(_OTHER_KINDS):
                continue
            with path.open("rb") as file:
                start = file.read(_SNIFFED_BYTES)
                file.seek(max(0, path.stat().st_size - _SNIFFED_BYTES))
                text = start + file.read()
            if text.lstrip()[:1] == b"{" and (b'"annotations"' in text or b'"categories"' in text):
                yield path


def choose_file(files: Sequence[Path], split: Split, need_keypoints: bool) -> AnnotationFile:
    """The file of a split; one file for everything is divided by us."""
    kind = [file for file in files if ("keypoints" in file.name) == need_keypoints] or list(files)
    roles: dict[Path, set[str]] = {}  # splits that the words of a file's name, or its folder, speak of
    for file in kind:
        words = [*re.split(r"[^a-z0-9]+", file.stem.lower()), file.parent.name.lower()]
        matches = (re.fullmatch(r"(train|val|test)(?:ing|id|idation)?\d*", word) for word in words)
        roles[file] = {match.group(1) for match in matches if match}
    own, other = (
        [file for role in _ROLES[which] for file in kind if role in roles[file]]
        for which in (split, "val" if split == "train" else "train")
    )
    if own and (other or split == "val"):
        return AnnotationFile(own[0])
    if split == "train" and other:
        note = f"{other[0].name} is all there is: training on the images for evaluation"
        return AnnotationFile(other[0], note=note)
    if len(kind) == 1 or own or other:
        return AnnotationFile((own or other or kind)[0], split_by_us=True)
    names = ", ".join(file.name for file in kind[:4])
    raise InputError(f"cannot tell which annotation file is meant: {names}", "name the file: --data FILE")


def find_images_folder(base: Path, annotation_file: Path, content: Any) -> Path:
    """The folder that the file names of an annotation file start from."""
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        return base
    names = []
    for image in images[:20]:
        with suppress(LookupError, TypeError, ValueError):
            names.append(require_name(image["file_name"]))
    token = annotation_file.stem.rpartition("_")[2]  # train2017 of instances_train2017
    role = next((role for role in ("train", "valid", "val", "test") if role in token), token)
    root = base.parent if base.name == "annotations" else base
    below = ("{}", "images/{}", "{}/images")
    places = [root / folder.format(part) for part in (token, role) for folder in below]
    places += [annotation_file.parent, annotation_file.parent / "images", root / "images", root]
    for place in places:
        if any((place / name).is_file() for name in names):
            return place
    return next((place for place in places if place.is_dir()), base)


def load_json(path: Path) -> Any:
    """The content of a JSON file; NaN and infinity are let through, to be found where they stand."""
    import msgspec

    raw = read_within_limit("annotation_bytes", path)
    try:
        try:
            return msgspec.json.decode(raw)  # three times faster than json; knows no NaN
        except msgspec.DecodeError:
            if len(raw) > _MOST_BYTES_READ_SLOWLY:
                raise
            return json.loads(raw)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path}: not JSON: {str(error).partition(chr(10))[0]}", "restore the annotation file"
        ) from error


def mirror_points(names: list[str]) -> tuple[int, ...]:
    """For every keypoint the one that stands in its place in the mirror: left_eye and right_eye swap."""
    places = {name: place for place, name in enumerate(names)}

    def swap_side(name: str) -> str:
        for one, two in (("left", "right"), ("right", "left")):
            if one in name:
                return name.replace(one, two)
        return name

    return tuple(places.get(swap_side(name), place) for place, name in enumerate(names))


def _read_classes(categories: list[Row], judge: Judge) -> dict[int, str]:
    """Names by id; an id of two classes would give one of them the other's objects."""
    classes: dict[int, str] = {}
    for category in categories:
        try:
            number, name = parse_whole(category["id"]), require_name(category["name"])
        except ValueError as error:
            judge.report_problem("(categories)", None, f"a category cannot be used: {error}")
            continue
        if number in classes:
            reason = f"categories {classes[number][:60]!r} and {name[:60]!r} have the same id {number}"
            judge.report_problem("(categories)", None, reason)
        else:
            classes[number] = name
    return classes


def _find_usable_images(images: list[Row], judge: Judge, *homes: Path) -> list[Row]:
    """Images with an id of their own and a file below one of the homes; the first is the images' own."""
    kept: dict[int, Row] = {}
    for image in images:
        try:
            name, number = require_name(image["file_name"]), parse_whole(image["id"])
            if leads_out(name, homes[0], homes):
                raise ValueError("the file name leads out of the data set")
            if number in kept:
                raise ValueError(f"has the same id {number} as image {kept[number]['file_name']}")
        except ValueError as error:
            judge.report_problem(shorten_value(image["file_name"]).strip("'\""), None, str(error))
        else:
            kept[number] = image
    return list(kept.values())


def _group_by_image(annotations: list[Row], images: list[Row], path: Path) -> list[tuple[Row, list[Row]]]:
    groups: dict[int, list[Row]] = {parse_whole(image["id"]): [] for image in images}
    for annotation in annotations:
        if (group := groups.get(_number_or_none(annotation["image_id"]))) is not None:
            group.append(annotation)
    fullest = max(groups, key=lambda number: len(groups[number]), default=None)
    if fullest is not None:
        require_within("image_objects", len(groups[fullest]), f"{path}, image {fullest}")
    return list(zip(images, groups.values(), strict=True))


def _number_or_none(value: Any) -> Any:
    if type(value) is int:  # nearly always; there may be a million
        return value
    try:
        return parse_whole(value)
    except ValueError:
        return None


def _note_strays(annotations: list[Row], images: list[Row], judge: Judge, most: int = 100) -> None:
    """Annotations of no image, and ids that are used twice: harmless to a training, not to other tools."""
    ids = {parse_whole(image["id"]) for image in images}
    for annotation in annotations:
        if _number_or_none(annotation["image_id"]) not in ids:
            number = _number_or_none(annotation["id"])
            reason = f"belongs to image {shorten_value(annotation['image_id'])}, which is not there"
            judge.note_problem("(no image)", number, reason)
            most -= 1
        if most <= 0:
            return
    counted = Counter(_number_or_none(annotation["id"]) for annotation in annotations)
    twice = [(number, times) for number, times in counted.items() if number is not None and times > 1]
    for number, times in twice[:most]:
        judge.note_problem("(several images)", number, f"the id of {times} annotations")


@dataclass(frozen=True)
class _CocoReader:
    """Turns annotations into objects; what is wrong with them is the judge's."""

    labels: dict[int, int]
    keypoint_count: int
    request: OpenRequest
    images_folder: Path
    judge: Judge

    def read_image(self, image: Row, annotations: list[Row]) -> ImageRecord:
        """The record of an image with all its annotations."""
        name = str(image["file_name"])
        width, height = (self._read_side(image.get(key), key, name) for key in ("width", "height"))
        size = (width, height)
        if None in size:
            size = read_image_size(self.images_folder / name)
        return make_record(
            parse_whole(image["id"]),
            name,
            size,
            self.judge.collect_objects(
                name,
                ((_number_or_none(one["id"]), one) for one in annotations),
                lambda number, one: self._read_object(number, one, size, name),
            ),
            with_masks=self.request.need_masks,
            keypoint_count=self.keypoint_count if self.request.need_keypoints else None,
        )

    def _read_side(self, value: Any, key: str, name: str) -> int | None:
        """A side of the image; where the file has nonsense, the image itself is asked."""
        try:
            side = None if value is None else parse_whole(value)
        except ValueError:
            side = 0
        if side is not None and not 0 < side <= LARGEST_SIDE:
            reason = f"its {key} is {shorten_value(value)}, which no image has"
            self.judge.report_problem(name, None, reason, "noted")
            return None
        return side

    def _read_object(self, number: int | None, annotation: Row, size: Size, name: str) -> ObjectRecord:
        if number is None or abs(number) >= 2**62:
            raise BadAnnotationError(f"its id {shorten_value(annotation['id'])} is not a whole number")
        category = _number_or_none(annotation["category_id"])
        if category not in self.labels:
            raise BadAnnotationError(f"unknown category {shorten_value(annotation['category_id'])}")
        bbox = annotation.get("bbox")
        if not isinstance(bbox, list | tuple) or len(bbox) != 4:
            raise BadAnnotationError("box is not a list of four numbers")
        try:
            x, y, width, height = map(parse_number, bbox)
        except ValueError as error:
            raise BadAnnotationError(f"box: {error}") from None
        box = self.judge.judge_box((x, y, x + width, y + height), size, name, number)
        area = annotation.get("area")
        try:
            area = box_area(box) if area is None else parse_number(area)
        except ValueError as error:
            raise BadAnnotationError(f"area {error}") from None
        if not math.isfinite(area):
            raise BadAnnotationError("area is not finite")
        given, segmentation = annotation.get("segmentation"), None
        # a check looks at segmentations that are there, though nobody needs them
        if self.request.need_masks or (self.request.checking and given):
            segmentation = parse_segmentation(given)
            if size[0] is not None and size[1] is not None:
                require_mask_size(segmentation, size[1], size[0])
        return ObjectRecord(
            box,
            self.labels[category],
            area,
            number,
            crowd=int(bool(annotation.get("iscrowd", 0))),
            segmentation=segmentation,
            keypoints=self._read_keypoints(annotation) if self.request.need_keypoints else None,
        )

    def _read_keypoints(self, annotation: Row) -> npt.NDArray[np.float32]:
        given = annotation.get("keypoints")
        if given is None:  # nobody marked any: all are "not labelled"
            return np.zeros((self.keypoint_count, 3), dtype=np.float32)
        try:
            points = np.asarray(given, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):
            raise BadAnnotationError("keypoints are not numbers") from None
        if points.shape != (3 * self.keypoint_count,) or not np.isfinite(points).all():
            raise BadAnnotationError(f"keypoints are not {self.keypoint_count} finite triples")
        return points.reshape(self.keypoint_count, 3)


_LICENCE = "annotations CC BY 4.0, images under Flickr's terms"
# MD5 sums are those that users of COCO have checked by for years; they tell a damaged file.
_LABELS, _VAL, _TRAIN = (
    Archive(f"http://images.cocodataset.org/{path}", f"md5:{md5}", size_bytes, most_members, proof, FOLDER)
    for path, md5, size_bytes, most_members, proof in (
        (
            "annotations/annotations_trainval2017.zip",
            "f4bbac642086de4f52a3fdda2de5fa2c",
            252_907_541,
            100,
            "annotations/instances_val2017.json",
        ),
        ("zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80", 815_585_330, 20_000, "val2017"),
        ("zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2", 19_336_861_798, 400_000, "train2017"),
    )
)
_LISTED = (
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, "
    "stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, "
    "backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, "
    "baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, "
    "knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, "
    "chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote, keyboard, "
    "cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, "
    "hair drier, toothbrush"
)
_NAMES = _LISTED.split(", ")
# Ids go up to 90; categories that were planned (street sign, hat, shoe, ...) and never annotated leave gaps.
_NAMES_BY_ID = list(_NAMES)
for _unused_id in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83):
    _NAMES_BY_ID.insert(_unused_id - 1, "N/A")

PART = DatasetFormat(
    "coco",
    "COCO 2017: 80 classes, masks, keypoints of people",
    open_coco,
    open_coco_folder,
    is_coco,
    order=2,
    collections=(
        Collection("coco", "COCO 2017 train, val, annotations", (_LABELS, _VAL, _TRAIN), "coco", _LICENCE),
        Collection("coco-val", "COCO 2017 val, annotations", (_LABELS, _VAL), "coco", _LICENCE),
    ),
    class_lists=(_NAMES_BY_ID, _NAMES, ["person"]),  # one class: COCO's keypoints
)
