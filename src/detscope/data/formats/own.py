"""A folder of one's own, recognised by its content: COCO JSON, VOC, YOLO labels, Pets, or images alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from detscope.data.annotations.records import Annotations, make_record
from detscope.data.dataset import CocoLayoutDataset, size_of_file, with_annotations
from detscope.data.formats.coco import annotation_files, open_coco_folder
from detscope.data.formats.voc import open_voc_folder
from detscope.data.formats.yolo import open_yolo_folder
from detscope.data.images.files import find_images
from detscope.data.registry import OpenRequest
from detscope.data.voc_sets import is_voc
from detscope.data.yolo_files import is_yolo
from detscope.errors import InputError

Layout = Literal["coco", "voc", "yolo", "pets", "images"]


def open_folder(request: OpenRequest) -> CocoLayoutDataset:
    """Open a folder (or an annotation file) in whichever layout it has."""
    folder = Path(request.settings.name)
    name = (folder.resolve() if folder.name in ("", ".", "..") else folder).name
    layout = recognise(folder)
    if layout == "coco":
        return open_coco_folder(folder, request, name)
    if layout == "voc":
        return open_voc_folder(folder, request, name)
    if layout == "yolo":
        return open_yolo_folder(folder, request, name)
    if layout == "pets":
        from detscope.data.formats.pets import open_pets_folder

        return open_pets_folder(folder, request, name)
    return _open_images(folder, request, name)


def recognise(folder: Path) -> Layout:
    """Which layout a folder has; annotation files are looked for where people put them."""
    if folder.is_file():
        return _recognise_file(folder)
    if (folder / "annotations" / "trimaps").is_dir():
        return "pets"
    if next(annotation_files(folder), None) is not None:
        return "coco"
    if is_voc(folder):
        return "voc"
    if is_yolo(folder):
        return "yolo"
    if find_images([str(folder)])[0]:
        return "images"
    raise InputError(
        f"{folder}: neither annotations nor images found",
        "known are COCO JSON, VOC folders, YOLO labels with data.yaml or classes.txt, and plain images",
    )


def _recognise_file(path: Path) -> Layout:
    if path.suffix == ".json":
        return "coco"
    if path.suffix in (".yaml", ".yml"):
        return "yolo"
    raise InputError(f"{path}: is a file and not a data set", "name a folder, a COCO JSON or a data.yaml")


def _open_images(folder: Path, request: OpenRequest, name: str) -> CocoLayoutDataset:
    if request.split == "train":
        raise InputError(
            f"{folder}: holds images and no annotations: nothing to train on",
            "known are COCO JSON, VOC folders and YOLO labels with data.yaml or classes.txt",
        )
    options = replace(request.read_options(), need_masks=False, need_keypoints=False)
    paths = find_images([str(folder)])[0][: request.settings.images]
    records = tuple(
        make_record(number, path.relative_to(folder).as_posix(), size_of_file(path), ())
        for number, path in enumerate(paths, start=1)
    )
    annotations = Annotations(("background",), (), records, (), notes=("images without annotations",))
    return with_annotations(name, folder, annotations, options, progress=request.progress)
