"""Where a YOLO data set has its images, labels and class names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.data.annotations.values import leads_out, read_lines, require_name, shown, whole_number
from detscope.data.images.files import SUFFIXES
from detscope.data.registry import Split
from detscope.data.splits import held_out_note, part_of
from detscope.errors import InputError
from detscope.limits import require_within

_NAME_FILES = ("classes.txt", "obj.names", "labels/classes.txt")
_FOLDERS: dict[Split, tuple[str, ...]] = {"train": ("train", "train2017"), "val": ("val", "valid", "test")}


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
        require_within("description_bytes", path.stat().st_size, f"{path}")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if node is None:
            return {}
        require_within("yaml_nodes", _count_repeated(node), f"{path}")
        content = loader.construct_document(node)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise InputError(f"{path}: is not YAML: {type(error).__name__}", "correct the file") from None
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


def _class_names(content: dict[str, Any], base: Path) -> tuple[str, ...]:
    names = content.get("names")
    if isinstance(names, dict):
        try:
            by_number = {whole_number(number): _class_name(name, base) for number, name in names.items()}
        except ValueError:
            raise InputError(f"{base}: class numbers in its YAML file are not numbers") from None
        last = max(by_number, default=-1)
        require_within("classes", last + 1, f"{base}")
        return tuple(by_number.get(number, f"class {number}") for number in range(last + 1))
    if isinstance(names, list):
        return tuple(_class_name(name, base) for name in names)
    for name in _NAME_FILES:
        if (base / name).is_file():
            lines = read_lines(base / name)
            require_within("classes", len(lines), f"{base / name}")
            return tuple(lines)
    return ()


def _class_name(name: Any, base: Path) -> str:
    """Numbers and truth values are names too: YAML reads `on` as one."""
    if isinstance(name, list | dict):
        raise InputError(f"{base}: a class name in its YAML file is {shown(name)}", "write names as texts")
    try:
        return require_name(str(name))
    except ValueError as error:
        raise InputError(f"{base}: a class name in its YAML file: {error}") from None


def _images_of(base: Path, content: dict[str, Any], split: Split) -> list[Path]:
    """Images of a split by `data.yaml`, else by the names of folders."""
    given = content.get(split) or (content.get("test") if split == "val" else None)
    if given is not None:
        texts = given if isinstance(given, list) else [given]
        root = content.get("path")
        wrong = [value for value in (*texts, root or "") if not isinstance(value, str)]
        if wrong:
            raise InputError(
                f"{base}: {split} in its YAML file is {shown(wrong[0])}, not the name of a folder"
            )
        return [image for text in texts for image in _expanded(text, base, root)]
    for name in _FOLDERS[split]:
        for place in (base / "images" / name, base / name / "images", base / name):
            if found := list(_images_in(place)):
                return found
    return []


def _expanded(text: str, base: Path, root: str | None) -> Iterator[Path]:
    """A folder of images or a file that lists them; exporters write paths from several places."""
    for name in (text, root or "."):
        try:
            require_name(name)
        except ValueError as error:
            raise InputError(f"{base}: a folder in its YAML file: {error}") from None
    places = [base / (root or ""), base]
    plain = text.removeprefix("../").removeprefix("./")
    for place in (*(start / text for start in places), base / plain):
        if place.is_dir():
            yield from _images_in(place)
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


def _images_in(folder: Path, deep: bool = True) -> Sequence[Path]:
    if not folder.is_dir():
        return []
    paths = folder.rglob("*") if deep else folder.iterdir()
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES)
