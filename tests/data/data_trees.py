"""Small VOC, COCO, Pets and YOLO trees, as files and as the archives their publishers serve."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Files = dict[str, bytes]
WIDTH, HEIGHT = 96, 72
BREEDS = {"Abyssinian": 1, "beagle": 2}


def picture(
    seed: int, size: tuple[int, int] = (WIDTH, HEIGHT), file_format: str = "JPEG", **options: Any
) -> bytes:
    """A picture with some structure; the same for the same seed."""
    small = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(buffer, file_format, **options)
    return buffer.getvalue()


def voc_xml(
    objects: list[tuple[str, tuple[float, float, float, float], int]],
    size: tuple[int, int] = (WIDTH, HEIGHT),
    file_name: str = "",
) -> bytes:
    """Objects are (name, (xmin, ymin, xmax, ymax) as VOC counts, difficult)."""
    rows = "".join(
        f"<object><name>{name}</name><pose>Left</pose><truncated>0</truncated><difficult>{difficult}</difficult>"
        f"<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>"
        f"<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
        "</object>"
        for name, box, difficult in objects
    )
    return (
        f"<annotation><filename>{file_name}</filename><size><width>{size[0]}</width>"
        f"<height>{size[1]}</height><depth>3</depth></size>{rows}</annotation>"
    ).encode()


def voc_files(year: str, split: str, names: list[str], seed: int = 0) -> Files:
    """The part of VOCdevkit that one archive holds."""
    base = f"VOCdevkit/VOC{year}"
    lists = [split] if split == "test" else ["trainval", "train", "val"]
    listed = {"trainval": names, "test": names, "train": names[::2], "val": names[1::2]}
    files = {
        f"{base}/ImageSets/Main/{name}.txt": "".join(f"{row}\n" for row in listed[name]).encode()
        for name in lists
    }
    for number, name in enumerate(names):
        difficult = ("person", (40, 30, 60, 50), 1)
        objects = [("dog", (11, 6, 50, 45), 0), *([difficult] if number % 2 else [])]
        files[f"{base}/Annotations/{name}.xml"] = voc_xml(objects, file_name=f"{name}.jpg")
        files[f"{base}/JPEGImages/{name}.jpg"] = picture(seed + number)
    return files


def coco_content(count: int, first_id: int = 1) -> dict[str, Any]:
    """An annotation file: two objects and a crowd region per image, the last image without any."""
    images = [
        {"id": number, "file_name": f"{number:012d}.jpg", "width": WIDTH, "height": HEIGHT}
        for number in range(first_id, first_id + count)
    ]
    rows: list[dict[str, Any]] = []
    for image in images[:-1]:
        for x, category, crowd in ((5, 18, 0), (50, 1, 0), (20, 1, 1)):
            mask: Any = [[x, 10, x + 30, 10, x + 30, 40, x, 40]]
            if crowd:
                mask = {"size": [HEIGHT, WIDTH], "counts": [0, HEIGHT, HEIGHT * WIDTH - HEIGHT]}
            rows.append(
                {
                    "id": len(rows) + 1 + 1000 * first_id,
                    "image_id": image["id"],
                    "category_id": category,
                    "bbox": [x, 10, 30, 30],
                    "area": 900,
                    "iscrowd": crowd,
                    "segmentation": mask,
                }
            )
    categories = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
    return {"images": images, "annotations": rows, "categories": categories}


def coco_archives(train: int = 6, val: int = 4) -> dict[str, bytes]:
    """The three archives of COCO 2017, small."""
    train_content, val_content = coco_content(train), coco_content(val, 501)
    labels = {
        "annotations/instances_train2017.json": json.dumps(train_content).encode(),
        "annotations/instances_val2017.json": json.dumps(val_content).encode(),
        "annotations/captions_val2017.json": b'{"images": [], "annotations": []}',
    }
    return {
        "annotations_trainval2017.zip": zipped(labels),
        "train2017.zip": zipped(_pictures("train2017", train_content)),
        "val2017.zip": zipped(_pictures("val2017", val_content)),
    }


def _pictures(folder: str, content: dict[str, Any]) -> Files:
    return {f"{folder}/{image['file_name']}": picture(image["id"]) for image in content["images"]}


def voc_archives() -> dict[str, bytes]:
    """The three archives of VOC 2007 and 2012, small."""
    return {
        "VOCtrainval_06-Nov-2007.tar": tarred(voc_files("2007", "trainval", ["000005", "000007", "000009"])),
        "VOCtest_06-Nov-2007.tar": tarred(voc_files("2007", "test", ["000001", "000002"], seed=50)),
        "VOCtrainval_11-May-2012.tar": tarred(
            voc_files("2012", "trainval", ["2008_000002", "2008_000003"], seed=90)
        ),
    }


def pets_archives() -> dict[str, bytes]:
    """The two archives of Oxford-IIIT Pet, small."""
    images: Files = {}
    annotations: Files = {}
    lists: dict[str, str] = {"trainval": "#Image CLASS-ID SPECIES BREED ID\n", "test": ""}
    for number in range(6):
        breed = list(BREEDS)[number % 2]
        name = f"{breed}_{number}"
        labels = np.full((HEIGHT, WIDTH), 2, np.uint8)
        labels[8:52, 8:62] = 3
        labels[10:50, 10:60] = 1
        buffer = io.BytesIO()
        Image.fromarray(labels).save(buffer, "PNG")
        annotations[f"annotations/trimaps/{name}.png"] = buffer.getvalue()
        images[f"images/{name}.jpg"] = picture(200 + number)
        lists["trainval" if number < 4 else "test"] += f"{name} {BREEDS[breed]} 1 1\n"
    for split, text in lists.items():
        annotations[f"annotations/{split}.txt"] = text.encode()
    return {"images.tar.gz": tarred(images, "gz"), "annotations.tar.gz": tarred(annotations, "gz")}


def tarred(files: Files, compression: str = "") -> bytes:
    """A tar of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files: Files) -> bytes:
    """A zip of files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def write(folder: Path, files: Files) -> Path:
    """Files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def coco_folder(folder: Path, content: dict[str, Any], file: str = "annotations.json") -> Path:
    """A folder with one annotation file and its images in `images/`."""
    files = {f"images/{image['file_name']}": picture(image["id"]) for image in content["images"]}
    return write(folder, {**files, file: json.dumps(content).encode()})


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder with its time of change and size: equal when nothing was touched."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}
