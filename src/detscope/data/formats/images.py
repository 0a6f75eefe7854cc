"""A folder with images and no annotations: nothing to train on, enough to look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from detscope.data.annotations import Annotations, make_record
from detscope.data.contract import DatasetFormat, OpenRequest
from detscope.data.dataset import FolderDataset, join_images, read_image_size
from detscope.data.images import find_images
from detscope.errors import InputError


def open_images(folder: Path, request: OpenRequest, name: str) -> FolderDataset:
    """Open a folder of images for anything but training."""
    if request.split == "train":
        raise InputError(
            f"{folder}: holds images and no annotations: nothing to train on",
            "known are COCO JSON, VOC folders and YOLO labels with data.yaml or classes.txt",
        )
    paths = find_images([str(folder)])[0][: request.settings.images]
    records = tuple(
        make_record(number, path.relative_to(folder).as_posix(), read_image_size(path), ())
        for number, path in enumerate(paths, start=1)
    )
    annotations = Annotations(("background",), (), records, notes=("images without annotations",))
    return join_images(name, folder, annotations, replace(request, need_masks=False, need_keypoints=False))


PART = DatasetFormat(
    "images",
    "folders of images alone",
    open_folder=open_images,
    recognises=lambda folder: folder.is_dir() and bool(find_images([str(folder)])[0]),
    order=9,
)
