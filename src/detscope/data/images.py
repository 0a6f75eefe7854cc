"""Image files: found, judged, decoded to three-channel RGB, and read for inference.

Policy: the format is read from the content and not from the name; grey, palette, CMYK and 16-bit
pictures become 8-bit RGB; an alpha channel is dropped; the EXIF orientation is applied, because
people annotate what their viewer shows. Pictures beyond the pixel limit are refused by their header.
Every file that cannot be used gets one line with its reason; for inference each is decoded once before
anything is measured.
"""

from __future__ import annotations

import io
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from detscope.data.contract import DetectionDataset, Progress
from detscope.errors import InputError
from detscope.limits import over_limit, read_limit
from detscope.marks import region

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]

# Formats that need no outside program to open; EPS, for one, would start Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")

_HINT = "repair or remove the file, or leave such images out with --on-bad-data skip"
_SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_ORIENTATION_TAG = 0x0112
_HEADER_BYTES, _TAIL_BYTES = 256, 64
# torch's loader passes a worker's exception on as its type and the text of its traceback.
_FROM_WORKER = re.compile(r"\ACaught .*\n(?:.*\n)*\S*ImageError: (.*)", re.MULTILINE)

# names that the formats of `images.FORMATS` go by
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
_WILDCARDS = frozenset("*?[")


class ImageError(InputError):
    """An image that cannot be used; the message stays one line also when it comes out of a loader worker."""

    def __init__(self, message: str, hint: str = _HINT) -> None:
        from_worker = _FROM_WORKER.match(message)
        super().__init__(from_worker.group(1) if from_worker else message, hint)


@dataclass(frozen=True)
class ImageFacts:
    """What the header says; width and height as shown, with the EXIF orientation applied."""

    width: int
    height: int
    file_format: str
    mode: str
    stored_width: int
    stored_height: int


def open_image(path: Path) -> Pixels:
    """Read a file to uint8 RGB [H, W, 3]."""
    return decode_image(read_image_file(path), str(path))


def read_image_file(path: Path) -> bytes:
    """The bytes of an image file; says why when there are none."""
    _require_readable(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from error


def _require_readable(path: Path) -> int:
    """The size in bytes of a file that may be an image."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ImageError(f"{path}: no such file") from None
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(f"{path}: is a folder, not an image")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{path}: is not a regular file")
    if status.st_size == 0:
        raise ImageError(f"{path}: is empty (0 bytes)")
    if status.st_size > read_limit("image_bytes"):
        raise _beyond_limit("image_bytes", f"{path}", status.st_size)
    return status.st_size


def _beyond_limit(limit_name: str, what: str, amount: int | None = None) -> ImageError:
    found = over_limit(limit_name, what, amount)
    return ImageError(found.message, f"{found.hint}; else {_HINT}")


def inspect_image(path: Path) -> ImageFacts:
    """Header and end of a file: finds missing, empty, foreign, oversized and truncated ones cheaply."""
    size_bytes = _require_readable(path)
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER_BYTES)
            file.seek(max(0, size_bytes - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
            picture = _open_picture(start, str(path), rest=file)
            with _one_line_reasons(str(path)):
                facts = _read_facts(picture)
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from error
    end = tail.rstrip(b"\0")
    is_jpeg = facts.file_format in ("JPEG", "MPO")
    if not (end.endswith(b"\xff\xd9") if is_jpeg else facts.file_format == "PNG" and b"IEND" in end):
        decode_image(read_image_file(path), str(path))  # only the decoder can tell: more may follow the end
    return facts


def decode_image(
    raw: bytes,
    name: str,
    width: int | None = None,
    height: int | None = None,
    at_least: tuple[int, int] | None = None,
) -> Pixels:
    """Decode the content of an image file to uint8 RGB [H, W, 3]; `name` is for messages.

    Where the annotated `width` and `height` are those of the stored pixels and not of the turned picture,
    the annotations were made without the EXIF orientation: then it is not applied. `at_least` (width,
    height) is what will be made of it: a JPEG that is twice as large or more is decoded smaller.

    Pillow and not torchvision: up to the float tensor torchvision needs 0.83 to 0.92 of the time at
    320-640 px, but its decoders are deprecated since 0.29 and know fewer formats.
    """
    from PIL import ImageOps

    picture = _open_picture(raw, name)
    with _one_line_reasons(name):
        turned = _shown_size(picture)
        apply = width is None or height is None or turned == (width, height)
        if not apply and picture.size != (width, height):
            raise _size_differs(name, turned, (width, height))
        if at_least is not None and picture.format == "JPEG":
            picture.draft(None, at_least if not apply or turned == picture.size else at_least[::-1])
        picture.load()
        if apply:
            ImageOps.exif_transpose(picture, in_place=True)
        return np.asarray(_convert_to_rgb(picture, name))


def verify_image(raw: bytes, name: str) -> ImageFacts:
    """Decode everything and keep nothing: a JPEG at an eighth of its size, which reads all its data too."""
    picture = _open_picture(raw, name)
    with _one_line_reasons(name):
        facts = _read_facts(picture)
        if picture.format == "JPEG":
            picture.draft(None, (max(1, picture.width // 8), max(1, picture.height // 8)))
        _require_known_range(picture, name)
        picture.load()
    return facts


def read_label_image(path: Path) -> Pixels:
    """A one-channel picture whose values are classes and not colours, [H, W]; no orientation is applied."""
    picture = _open_picture(read_image_file(path), str(path))
    if picture.mode not in ("L", "P"):
        raise ImageError(f"{path}: is not a picture of class numbers")
    with _one_line_reasons(str(path)):
        return np.asarray(picture)


def require_annotated_size(facts: ImageFacts, name: str, width: int | None, height: int | None) -> None:
    """Refuse an image that is not of the size its annotations were made for, turned or not."""
    shown, stored = (facts.width, facts.height), (facts.stored_width, facts.stored_height)
    if width is not None and height is not None and (width, height) not in (shown, stored):
        raise _size_differs(name, shown, (width, height))


def _size_differs(name: str, shown: tuple[int, int], annotated: tuple[int | None, int | None]) -> ImageError:
    return ImageError(
        f"{name}: is {shown[0]} x {shown[1]}, its annotations say {annotated[0]} x {annotated[1]}"
    )


def _read_facts(picture: Image) -> ImageFacts:
    return ImageFacts(*_shown_size(picture), picture.format or "", picture.mode, *picture.size)


def _shown_size(picture: Image) -> tuple[int, int]:
    turned = picture.getexif().get(_ORIENTATION_TAG, 1) in (5, 6, 7, 8)
    return (picture.height, picture.width) if turned else (picture.width, picture.height)


def _require_known_range(picture: Image, name: str) -> None:
    if picture.mode == "F":
        raise ImageError(f"{name}: has floating-point pixels without a known range")


def _convert_to_rgb(picture: Image, name: str) -> Image:
    from PIL import Image

    _require_known_range(picture, name)
    if picture.mode in _SIXTEEN_BIT:
        # Pillow's own conversion clips 16-bit values at 255, which gives a white picture.
        wide = np.asarray(picture).astype(np.int64).clip(0, 65535)
        picture = Image.fromarray((wide >> 8).astype(np.uint8))
    return picture if picture.mode == "RGB" else picture.convert("RGB")  # convert always copies


def _open_picture(raw: bytes, name: str, rest: IO[bytes] | None = None) -> Image:
    """The picture with its header read and judged, and nothing decoded yet; `rest` is the whole file."""
    from PIL import Image

    if raw[:256].lstrip()[:1] == b"<":
        raise ImageError(f"{name}: is a text or HTML page, not an image")
    with _one_line_reasons(name):
        picture = Image.open(rest or io.BytesIO(raw), formats=FORMATS)
    width, height = picture.size
    if width * height > read_limit("image_pixels"):
        raise _beyond_limit("image_pixels", f"{name}: {width} x {height}", width * height)
    return picture


@contextmanager
def _one_line_reasons(name: str) -> Iterator[None]:
    """Pillow raises what its many parsers happen to raise; to the user all of it is one bad file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Sizes are judged by our own limit, and what Pillow can repair is no fault of the run.
            warnings.simplefilter("ignore")
            yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{name}: is not an image in a known format") from None
    except Image.DecompressionBombError:
        raise _beyond_limit("image_pixels", name) from None
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ImageError(f"{name}: cannot be decoded: {reason}") from error


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
        from detscope.data.loading import make_float, make_planes

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
