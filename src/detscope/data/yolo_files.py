"""Where a YOLO data set has its images, labels and class names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.data.image_files import SUFFIXES
from detscope.data.registry import Split
from detscope.data.splits import held_out_note, part_of
from detscope.errors import InputError

_NAME_FILES = ("classes.txt", "obj.names", "labels/classes.txt")
_FOLDERS: dict[Split, tuple[str, ...]] = {"train": ("train", "train2017"), "val": ("val", "valid", "test")}
_MAX_YAML_BYTES = 2**20


@dataclass(frozen=True)
class YoloFolder:
    """The images of a split, those of the other one, and the classes (none: not named)."""

    base: Path
    images: tuple[Path, ...]
    others: tuple[Path, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def relative(self, image: Path) -> str:
        """The name of an image below the folder."""
        return image.relative_to(self.base).as_posix() if image.is_relative_to(self.base) else str(image)


def is_yolo(folder: Path) -> bool:
    """Whether a folder holds YOLO labels."""
    if _yaml_file(folder) is not None or any((folder / name).is_file() for name in _NAME_FILES):
        return True
    if next((folder / "labels").glob("**/*.txt"), None) is not None:
        return True
    return any(label_file(image).is_file() for image in _images_in(folder, deep=False))


def label_file(image: Path) -> Path:
    """Labels stand in `labels/` where images stand in `images/`, or beside the image."""
    parts = list(image.parts)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] == "images":
            parts[place] = "labels"
            there = Path(*parts).with_suffix(".txt")
            if there.is_file() or not image.with_suffix(".txt").is_file():
                return there
            break
    return image.with_suffix(".txt")


def read_yolo_folder(folder: Path, split: Split, held_out: float) -> YoloFolder:
    """Find images and classes; a folder without splits is divided by us."""
    described = _yaml_file(folder)
    content = _read_yaml(described) if described is not None else {}
    base = folder.parent if folder.is_file() else folder
    classes = _class_names(content, base)
    other_split: Split = "val" if split == "train" else "train"
    own, other = (_images_of(base, content, which) for which in (split, other_split))
    if own and other:
        return YoloFolder(base, tuple(own), tuple(other), classes)
    everything = {str(image): image for image in (*own, *other)} or {
        str(image): image for image in _images_in(base)
    }
    if not everything:
        raise InputError(f"{folder}: no images found beside its labels")
    chosen = part_of(list(everything), split, held_out)
    rest = [image for name, image in everything.items() if name not in set(chosen)]
    images = tuple(everything[name] for name in chosen)
    return YoloFolder(base, images, tuple(rest), classes, (held_out_note(held_out),))


def _yaml_file(folder: Path) -> Path | None:
    if folder.is_file():
        return folder if folder.suffix in (".yaml", ".yml") else None
    found = [
        folder / "data.yaml",
        folder / "data.yml",
        folder / "dataset.yaml",
        *sorted(folder.glob("*.y*ml")),
    ]
    return next((path for path in found if path.is_file() and "names" in _read_yaml(path)), None)


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        if path.stat().st_size > _MAX_YAML_BYTES:
            raise InputError(f"{path}: is larger than a description of a data set may be")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: is not YAML: {type(error).__name__}", "correct the file") from None
    return content if isinstance(content, dict) else {}


def _class_names(content: dict[str, Any], base: Path) -> tuple[str, ...]:
    names = content.get("names")
    if isinstance(names, dict):
        try:
            last = max(int(number) for number in names)
        except (ValueError, TypeError):
            raise InputError(f"{base}: class numbers in its YAML file are not numbers") from None
        by_number = {int(number): str(name) for number, name in names.items()}
        return tuple(by_number.get(number, f"class {number}") for number in range(min(last, 10_000) + 1))
    if isinstance(names, list):
        return tuple(str(name) for name in names)
    for name in _NAME_FILES:
        if (base / name).is_file():
            lines = (base / name).read_text(encoding="utf-8").splitlines()
            return tuple(line.strip() for line in lines if line.strip())
    return ()


def _images_of(base: Path, content: dict[str, Any], split: Split) -> list[Path]:
    """Images of a split by `data.yaml`, else by the names of folders."""
    given = content.get(split) or (content.get("test") if split == "val" else None)
    if given is not None:
        texts = given if isinstance(given, list) else [given]
        return [image for text in texts for image in _expanded(str(text), base, content.get("path"))]
    for name in _FOLDERS[split]:
        for place in (base / "images" / name, base / name / "images", base / name):
            if found := list(_images_in(place)):
                return found
    return []


def _expanded(text: str, base: Path, root: object) -> Iterator[Path]:
    """A folder of images or a file that lists them; exporters write paths from several places."""
    places = [base / str(root or ""), base]
    plain = text.removeprefix("../").removeprefix("./")
    for place in (*(start / text for start in places), base / plain):
        if place.is_dir():
            yield from _images_in(place)
            return
        if place.is_file():
            for line in place.read_text(encoding="utf-8").splitlines():
                if line.strip():
                    path = Path(line.strip())
                    yield path if path.is_absolute() else place.parent / path
            return


def _images_in(folder: Path, deep: bool = True) -> Sequence[Path]:
    if not folder.is_dir():
        return []
    paths = folder.rglob("*") if deep else folder.iterdir()
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES)
