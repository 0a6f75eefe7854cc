"""Images for inference: files, folders and globs from a command line, or the images of a data set.

Every given file is decoded once before anything is measured: what cannot be read gets one line with its
reason, the others are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from detscope.data.contract import DetectionDataset, Progress
from detscope.data.images.decoding import ImageError, decode_image, open_image, read_image_file
from detscope.marks import region

if TYPE_CHECKING:
    import torch

# names that the formats of `images.FORMATS` go by
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
_WILDCARDS = frozenset("*?[")


class ImageSource(Protocol):
    """Images by number, for reading inside the loop. An item is the float CHW image and its number."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Background first; empty where nobody knows them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]: ...

    def image_name(self, index: int) -> str:
        """File name of an image, for messages and reports."""


@dataclass(frozen=True)
class UnusableImage:
    """An image that was asked for and is not measured."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"skipped {self.file}: {self.reason}"


@dataclass(frozen=True)
class ImageFiles:
    """Files that are known to be readable."""

    paths: tuple[Path, ...]
    sizes: tuple[tuple[int, int], ...]  # width and height
    name: str = "files"
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from detscope.data.loading.views import make_float, make_planes

        path = self.paths[index]
        with region("load"):
            raw = read_image_file(path)
        with region("decode"):
            pixels = decode_image(raw, str(path))
        with region("transform"):
            height, width, _ = pixels.shape
            return make_float(make_planes(pixels, (width, height), flip=False)), index

    def image_name(self, index: int) -> str:
        """The path as it was given or found."""
        return str(self.paths[index])

    def leave_out(self, numbers: Sequence[int]) -> ImageFiles:
        """The same files but for some."""
        kept = [index for index in range(len(self.paths)) if index not in set(numbers)]
        return ImageFiles(tuple(self.paths[i] for i in kept), tuple(self.sizes[i] for i in kept), self.name)


@dataclass(frozen=True)
class DatasetImages:
    """The images of a data set, without their targets."""

    dataset: DetectionDataset
    limit: int | None = None

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.dataset.name

    @property
    def classes(self) -> tuple[str, ...]:
        """The data set's classes, background first."""
        return self.dataset.classes

    def __len__(self) -> int:
        return min(len(self.dataset), self.limit or len(self.dataset))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.dataset[index][0], index

    def image_name(self, index: int) -> str:
        """File name of an image."""
        return self.dataset.image_name(index)


def find_images(given: Sequence[str]) -> tuple[list[Path], list[UnusableImage]]:
    """The files that texts of a command line name, in their order, and texts that name none."""
    found: dict[Path, None] = {}
    skipped: list[UnusableImage] = []
    for text in given:
        paths = list(_expand_pattern(text))
        if not paths:
            what = "holds no image files" if Path(text).is_dir() else "matches no image files"
            skipped.append(UnusableImage(text, what))
        found.update(dict.fromkeys(paths))
    return list(found), skipped


def read_images(
    paths: Sequence[Path], limit: int | None = None, progress: Progress | None = None
) -> tuple[ImageFiles, list[UnusableImage]]:
    """Decode files until `limit` of them were good; the others with the reason why they are not."""
    sizes: dict[Path, tuple[int, int]] = {}
    skipped: list[UnusableImage] = []
    wanted = min(len(paths), limit or len(paths))
    for path in paths:
        if len(sizes) == wanted:
            break
        try:
            height, width, _ = open_image(path).shape
        except ImageError as error:
            skipped.append(UnusableImage(str(path), error.message.removeprefix(f"{path}: ")))
            continue
        sizes[path] = (width, height)
        if progress is not None:
            progress("reading images", len(sizes), wanted)
    return ImageFiles(tuple(sizes), tuple(sizes.values())), skipped


def _expand_pattern(text: str) -> Iterator[Path]:
    path = Path(text)
    matches = [path]
    if _WILDCARDS & set(text) and not path.exists():
        parts = path.parts
        first = next(index for index, part in enumerate(parts) if _WILDCARDS & set(part))
        matches = sorted(Path(*parts[:first]).glob("/".join(parts[first:])))
    for match in matches:
        # a folder named like an image stays in the list, so that the reader says what it is
        is_folder = match.is_dir() and match.suffix.lower() not in SUFFIXES
        yield from _list_files(match) if is_folder else (match,)


def _list_files(folder: Path) -> Iterator[Path]:
    """Everything below a folder that is named like an image, sorted; links to folders are not followed."""
    for entry in sorted(folder.iterdir()):
        if entry.suffix.lower() in SUFFIXES:
            yield entry
        elif entry.is_dir() and not entry.is_symlink():
            yield from _list_files(entry)
