"""COCO 2017 as it is published, and anybody's own folder in COCO's layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detscope.data.annotations.values import require_name
from detscope.data.coco_annotations import load_json
from detscope.data.dataset import CocoLayoutDataset, open_coco_layout
from detscope.data.registry import OpenRequest, Split
from detscope.data.splits import held_out_note, part_of
from detscope.errors import InputError

FOLDER = "coco"
# files of COCO that are no boxes
_OTHER = ("captions", "stuff", "panoptic", "image_info")
_SNIFFED_BYTES = 2**16
_ROLES: dict[Split, tuple[str, ...]] = {"train": ("train",), "val": ("val", "test")}


@dataclass(frozen=True)
class _Choice:
    file: Path
    split_by_us: bool = False
    note: str = ""


def open_coco(request: OpenRequest) -> CocoLayoutDataset:
    """Open COCO 2017 from where it was prepared."""
    folder = find_coco(Path(request.settings.root))
    if folder is None:
        raise InputError(
            f"COCO is not in {request.settings.root}",
            "fetch it with `detscope data prepare coco`, or name its folder with --set data.root=DIR",
        )
    return open_coco_folder(folder, request, "coco")


def find_coco(root: Path) -> Path | None:
    """The folder that holds COCO's `annotations/`, under the root or being it."""
    for folder in (root / FOLDER, root, root / "COCO", root / "coco2017"):
        if next((folder / "annotations").glob("instances_*.json"), None) is not None:
            return folder
    return None


def open_coco_folder(folder: Path, request: OpenRequest, name: str) -> CocoLayoutDataset:
    """Open a folder (or one annotation file) in COCO's layout."""
    files = [folder] if folder.is_file() else list(annotation_files(folder))
    base = folder.parent if folder.is_file() else folder
    choice = choose_file(files, request.split, request.need_keypoints)
    content = load_json(choice.file)
    held_out = request.settings.held_out

    def wanted(images: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not choice.split_by_us:
            return images
        chosen = set(part_of([str(image["file_name"]) for image in images], request.split, held_out))
        return [image for image in images if str(image["file_name"]) in chosen]

    note = held_out_note(held_out) if choice.split_by_us else choice.note
    return open_coco_layout(
        name,
        images_folder(base, choice.file, content),
        choice.file,
        replace(request.read_options(), limit=request.settings.images),
        progress=request.progress,
        wanted=wanted,
        augmentation=request.augmentation(),
        content=content,
        notes=(note,) if note else (),
        home=base,
    )


def annotation_files(folder: Path) -> Iterator[Path]:
    """Annotation files with boxes, where people put them."""
    for place in (folder / "annotations", folder, *_split_folders(folder)):
        for path in sorted(place.glob("*.json")) if place.is_dir() else ():
            if not path.name.startswith(_OTHER) and _looks_like_coco(path):
                yield path


def choose_file(files: Sequence[Path], split: Split, need_keypoints: bool) -> _Choice:
    """The file of a split; one file for everything is divided by us."""
    kind = [file for file in files if ("keypoints" in file.name) == need_keypoints] or list(files)
    own = _of_role(kind, _ROLES[split])
    other = _of_role(kind, _ROLES["val" if split == "train" else "train"])
    if own and other:
        return _Choice(own[0])
    if split == "val" and own:
        return _Choice(own[0])
    if split == "train" and other:
        return _Choice(
            other[0], note=f"{other[0].name} is all there is: training on the images for evaluation"
        )
    if len(kind) == 1 or own or other:
        return _Choice((own or other or kind)[0], split_by_us=True)
    names = ", ".join(file.name for file in kind[:4])
    raise InputError(f"cannot tell which annotation file is meant: {names}", "name the file: --data FILE")


def images_folder(base: Path, annotation_file: Path, content: Any) -> Path:
    """The folder that the file names of an annotation file start from."""
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        return base
    names = [name for image in images[:20] if (name := _usable_name(image))]
    places = list(dict.fromkeys(_places(base, annotation_file)))
    for place in places:
        if any((place / name).is_file() for name in names):
            return place
    return next((place for place in places if place.is_dir()), base)


def _usable_name(image: Any) -> str | None:
    try:
        return require_name(image["file_name"])
    except (LookupError, TypeError, ValueError):
        return None


def _places(base: Path, annotation_file: Path) -> Iterator[Path]:
    token = annotation_file.stem.rpartition("_")[2]  # train2017 of instances_train2017
    role = next((role for role in ("train", "valid", "val", "test") if role in token), token)
    root = base.parent if base.name == "annotations" else base
    for name in (token, role):
        yield from (root / name, root / "images" / name, root / name / "images")
    yield from (annotation_file.parent, annotation_file.parent / "images", root / "images", root)


def _of_role(files: Sequence[Path], roles: Sequence[str]) -> list[Path]:
    return [file for role in roles for file in files if role in _roles_of(file)]


def _roles_of(file: Path) -> set[str]:
    """Splits that the words of a file's name, or the folder it is in, speak of."""
    words = [*re.split(r"[^a-z0-9]+", file.stem.lower()), file.parent.name.lower()]
    found = (re.fullmatch(r"(train|val|test)(?:ing|id|idation)?\d*", word) for word in words)
    return {match.group(1) for match in found if match}


def _split_folders(folder: Path) -> list[Path]:
    return [folder / name for name in ("train", "valid", "val", "test")]


def _looks_like_coco(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_SNIFFED_BYTES)
        file.seek(max(0, path.stat().st_size - _SNIFFED_BYTES))
        text = start + file.read()
    return text.lstrip()[:1] == b"{" and (b'"annotations"' in text or b'"categories"' in text)
