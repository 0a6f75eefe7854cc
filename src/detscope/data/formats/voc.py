"""PASCAL VOC 2007 and 2012 as they are published, and anybody's own folder in VOC's layout.

Difficult objects are in the ground truth and not in what is trained on. Of VOC 2007 and 2012 the
usual parts are taken: trained on both trainval sets, evaluated on the test set of 2007; without it,
train and val of what is there.

Annotation files come from strangers: entities and outside references are refused unread. VOC counts pixels
from 1 and includes the last one: a box (1, 1, 500, 375) covers an image of 500 x 375.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.data.annotations import (
    LARGEST_SIDE,
    Annotations,
    BadAnnotationError,
    Box,
    ImageRecord,
    Judge,
    ObjectRecord,
    Size,
    SplitItems,
    box_area,
    divide_items,
    encode_mask,
    make_record,
    read_lines,
    relative_name,
)
from detscope.data.contract import DatasetFormat, OpenRequest, Progress, track_progress
from detscope.data.dataset import FolderDataset, join_images, read_image_size
from detscope.data.download.prepare import Archive, Collection
from detscope.data.images import SUFFIXES, read_label_image
from detscope.errors import InputError, UsageError
from detscope.limits import read_within_limit, require_within

FOLDER = "VOCdevkit"
_BESIDE = {"train": ("train",), "val": ("valid", "val", "test")}
_Name = tuple[Path, str]  # the folder of a year and the name of an image without its ending


class VocXmlError(InputError):
    """An annotation file that cannot be used."""


@dataclass(frozen=True)
class VocItem:
    """An annotation file, where its image should be, and its picture of masks if there is one."""

    annotation: Path
    images: Path
    mask: Path | None = None

    def find_image(self, file_name: str) -> Path:
        """The image beside the name of the annotation file, or the one that the annotation names."""
        usual = self.images / f"{self.annotation.stem}.jpg"
        named = self.images / Path(file_name).name if file_name else usual
        others = (self.images / f"{self.annotation.stem}{suffix}" for suffix in sorted(SUFFIXES))
        return next((path for path in (usual, named, *others) if path.is_file()), usual)


@dataclass(frozen=True)
class VocObject:
    """One object as written; the box may still be nonsense."""

    name: str
    box: Box | None  # None: without four numbers
    difficult: bool


@dataclass(frozen=True)
class VocFile:
    """The content of one annotation file."""

    file_name: str
    width: int | None
    height: int | None
    objects: tuple[VocObject, ...]


def open_voc(request: OpenRequest) -> FolderDataset:
    """Open PASCAL VOC from where it was prepared."""
    root = Path(request.settings.root)
    if not find_years(root):
        raise InputError(
            f"PASCAL VOC is not in {root}",
            "fetch it with `detscope data prepare voc`, or name its folder with --set data.root=DIR",
        )
    return open_voc_folder(root, request, "voc")


def open_voc_folder(folder: Path, request: OpenRequest, name: str) -> FolderDataset:
    """Open a folder in VOC's layout."""
    if request.need_keypoints:
        raise UsageError(
            f"data set {name} has no keypoints, which this model needs",
            "choose a model without keypoints, or COCO's keypoint annotations",
        )
    split = _choose_items(folder, request)
    judge = Judge(request.skip_bad)
    wanted = split.items[: request.settings.images]
    files = _read_files(wanted, folder, judge, request.progress)
    others = (*split.items[len(wanted) :], *split.others)
    classes = CLASSES
    listed = [path for path in (folder / "classes.txt", folder / "labels.txt") if path.is_file()]
    if name != "voc" and listed:
        classes = tuple(read_lines(listed[0]))
    elif name != "voc":  # VOC's own if they will do, else those that occur in any split
        rest = _read_files(others, folder, Judge(skip_bad=True), None)
        names = {one.name for _, file in (*files, *rest) for one in file.objects} - {""}
        classes = CLASSES if names <= set(CLASSES) and names else tuple(sorted(names))
    labels = {known: label for label, known in enumerate(classes, start=1)}
    records = tuple(
        _make_voc_record(item, file, folder, number, labels, judge, request.need_masks)
        for number, (item, file) in enumerate(files, start=1)
    )
    annotations = Annotations(
        ("background", *classes),
        tuple(range(1, len(classes) + 1)),
        records,
        tuple(judge.problems),
        split.notes,
    )
    return join_images(name, folder, annotations, request)


def _read_files(
    items: Sequence[VocItem], folder: Path, judge: Judge, progress: Progress | None
) -> list[tuple[VocItem, VocFile]]:
    files = []
    for item in track_progress(items, len(items), "reading annotations", progress):
        try:
            files.append((item, read_voc_xml(item.annotation)))
        except VocXmlError as error:
            reason = error.message.removeprefix(str(item.annotation)).lstrip(":, ")
            judge.report_problem(relative_name(item.annotation, folder), None, reason)
    return files


def _make_voc_record(
    item: VocItem,
    file: VocFile,
    folder: Path,
    number: int,
    labels: dict[str, int],
    judge: Judge,
    need_masks: bool,
) -> ImageRecord:
    image = item.find_image(file.file_name)
    name = relative_name(image, folder)
    size: Size = (file.width, file.height)
    if None in size:
        size = read_image_size(image)
    if need_masks and item.mask is None:
        raise UsageError("this data set has no masks, which this model needs", "choose another model")
    # the n-th object of the annotation has the value n in the picture of masks
    masks = read_label_image(item.mask) if need_masks and item.mask is not None else None

    def read_object(place: int, one: VocObject) -> ObjectRecord:
        if one.name not in labels:
            raise BadAnnotationError(f"unknown class {one.name[:40]!r}")
        if one.box is None:
            raise BadAnnotationError("box is not four numbers")
        box = judge.judge_box(one.box, size, name, place)
        if masks is not None and not (masks == place).any():
            raise BadAnnotationError("has no pixel in the picture of masks")
        mask = None if masks is None else encode_mask(masks == place)
        return ObjectRecord(
            box, labels[one.name], box_area(box), place, difficult=int(one.difficult), segmentation=mask
        )

    objects = judge.collect_objects(name, enumerate(file.objects, start=1), read_object)
    return make_record(number, name, size, objects, with_masks=need_masks)


def find_years(folder: Path) -> list[Path]:
    """Folders with `Annotations/`: the given one, or the years below it or below VOCdevkit."""
    if (folder / "Annotations").is_dir():
        return [folder]
    for place in (folder / "VOCdevkit", folder):
        years = sorted(path.parent for path in place.glob("*/Annotations") if path.is_dir())
        if years:
            return years
    return []


def is_voc(folder: Path) -> bool:
    """Whether a folder holds VOC annotations, in VOC's layout or beside the images."""
    if find_years(folder):
        return True
    places = [folder, *(folder / name for names in _BESIDE.values() for name in names)]
    return any(next(place.glob("*.xml"), None) is not None for place in places)


def _choose_items(folder: Path, request: OpenRequest) -> SplitItems[VocItem]:
    """What to train on or to evaluate on."""
    years = find_years(folder)
    if not years:  # annotations beside the images
        loose, own, others = (
            tuple(
                VocItem(path, path.parent) for part in parts for path in sorted((folder / part).glob("*.xml"))
            )
            for parts in (["."], _BESIDE[request.split], _BESIDE[request.other_split])
        )
        if own and others:
            return SplitItems(own, others)
        return divide_items({item.annotation.stem: item for item in (*loose, *own, *others)}, request)
    kind = "Segmentation" if request.need_masks else "Main"
    if request.need_masks and not any((year / "SegmentationObject").is_dir() for year in years):
        raise UsageError(f"{folder} has no masks, which this model needs", "choose another data set or model")
    # by the rules at the top of this file
    tested = [
        (year, stem)
        for year, stem in _read_names(years, kind, "test")
        if (year / "Annotations" / f"{stem}.xml").is_file()
    ]
    if tested:
        trained = [
            name
            for year in years
            for name in _read_names([year], kind, "trainval") or _read_names([year], kind, "train", "val")
        ]
    else:
        trained, tested = _read_names(years, kind, "train"), _read_names(years, kind, "val")
    if not (trained and tested):  # no lists for both splits: what there is, divided by us
        everything = _read_names(years, kind, "trainval", "train", "val", "test")
        if not everything and kind == "Main":
            everything = [
                (year, path.stem) for year in years for path in sorted((year / "Annotations").glob("*.xml"))
            ]
        if not everything:
            raise InputError(f"{years[0]}: no annotations found", "look into its folder Annotations")
        items = {f"{name[0].name}/{name[1]}": _make_item(name, request.need_masks) for name in everything}
        return divide_items(items, request)
    wanted, other = (trained, tested) if request.split == "train" else (tested, trained)
    chosen = {name: _make_item(name, request.need_masks) for name in wanted}
    rest = [_make_item(name, request.need_masks) for name in other if name not in chosen]
    return SplitItems(tuple(chosen.values()), tuple(rest))


def _read_names(years: Sequence[Path], kind: str, *lists: str) -> list[_Name]:
    """Names of image sets, each once."""
    names: dict[_Name, None] = {}
    for year in years:
        for path in (year / "ImageSets" / kind / f"{name}.txt" for name in lists):
            if path.is_file():
                names |= {(year, Path(line.split()[0]).name): None for line in read_lines(path)}
    return list(names)


def _make_item(name: _Name, masks: bool) -> VocItem:
    year, stem = name
    images = next((place for place in (year / "JPEGImages", year / "images") if place.is_dir()), year)
    mask = year / "SegmentationObject" / f"{stem}.png" if masks else None
    return VocItem(year / "Annotations" / f"{stem}.xml", images, mask)


def read_voc_xml(path: Path) -> VocFile:
    """Read one annotation file; errors are one line and hold nothing of its content."""
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
    from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

    raw = read_within_limit("label_bytes", path, VocXmlError)
    try:
        root = fromstring(raw, forbid_dtd=True)
    except DefusedXmlException:
        raise VocXmlError(
            f"{path}: defines entities or refers to other files, which is refused",
            "an annotation needs neither; make the file anew",
        ) from None
    except (ParseError, ValueError, LookupError) as error:
        position = getattr(error, "position", None)
        where = f", line {position[0]}" if position else ""
        raise VocXmlError(
            f"{path}{where}: is not well-formed XML", "restore the file, or remove it"
        ) from None
    size, objects = root.find("size"), root.findall("object")
    if root.tag != "annotation" and size is None and not objects:
        raise VocXmlError(f"{path}: is XML of something else", "restore the file, or remove it")
    require_within("image_objects", len(objects), f"{path}", VocXmlError)
    return VocFile(
        _read_text(root, "filename"),
        _read_side(size, "width"),
        _read_side(size, "height"),
        tuple(
            VocObject(
                _read_text(one, "name"),
                _read_box(one.find("bndbox")),
                _read_text(one, "difficult") not in ("", "0"),
            )
            for one in objects
        ),
    )


def _read_box(bounds: Any) -> Box | None:
    if bounds is None:
        return None
    try:
        left, top, right, bottom = (
            float(_read_text(bounds, key) or "none") for key in ("xmin", "ymin", "xmax", "ymax")
        )
    except ValueError:
        return None
    return left - 1, top - 1, right, bottom


def _read_text(element: Any, key: str) -> str:
    return (element.findtext(key) or "").strip()


def _read_side(size: Any, key: str) -> int | None:
    try:
        value = int(float(_read_text(size, key))) if size is not None else 0
    except (ValueError, OverflowError):
        return None
    return value if 0 < value <= LARGEST_SIDE else None  # some tools write 0 where they did not look


_LISTED = (
    "aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse, "
    "motorbike, person, pottedplant, sheep, sofa, train, tvmonitor"
)
CLASSES = tuple(_LISTED.split(", "))
# torchvision carries the same sums
_TRAINVAL_2007, _TEST_2007, _TRAINVAL_2012 = (
    Archive(
        f"https://thor.robots.ox.ac.uk/pascal/VOC/voc{date[-4:]}/VOC{split}_{date}.tar",
        f"md5:{md5}",
        size_bytes,
        most_members,
        proof=f"VOC{date[-4:]}/ImageSets/Main/{split}.txt",
        folder=FOLDER,
        strip=FOLDER,
    )
    for split, date, md5, size_bytes, most_members in (
        ("trainval", "06-Nov-2007", "c52e279531787c972589f7e41ab4ae64", 460_032_000, 40_000),
        ("test", "06-Nov-2007", "b6e924de25625d8de591ea690078ad9f", 451_020_800, 40_000),
        ("trainval", "11-May-2012", "6cd6e144f989b92b3379bac3b3de84fd", 1_999_639_040, 100_000),
    )
)

PART = DatasetFormat(
    "voc",
    "PASCAL VOC 2007 and 2012: 20 classes",
    open_voc,
    open_voc_folder,
    is_voc,
    order=3,
    collections=tuple(
        Collection(name, f"PASCAL VOC {what}", archives, "voc", "images under Flickr's terms")
        for name, what, archives in (
            ("voc", "2007 trainval and test, 2012 trainval", (_TRAINVAL_2007, _TEST_2007, _TRAINVAL_2012)),
            ("voc2007", "2007 trainval and test", (_TRAINVAL_2007, _TEST_2007)),
            ("voc2012", "2012 trainval", (_TRAINVAL_2012,)),
        )
    ),
    class_lists=(CLASSES,),
)
