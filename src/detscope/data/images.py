"""Image files to three-channel RGB, with a one-line reason for every file that cannot be used.

Policy: the format is read from the content and not from the name; grey, palette, CMYK and 16-bit
pictures become 8-bit RGB; an alpha channel is dropped; the EXIF orientation is applied, because
people annotate what their viewer shows. Pictures beyond the pixel limit are refused by their header.
"""

from __future__ import annotations

import io
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detscope.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from PIL.Image import Image

MAX_PIXELS = 100_000_000
MAX_FILE_BYTES = 512 * 2**20
# Formats that need no outside program to open; EPS, for one, would start Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")

_HINT = 'repair or remove the file, or leave such images out with data.on_bad_data = "skip"'
_SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_ORIENTATION_TAG = 0x0112
# torch's loader passes a worker's exception on as its type and the text of its traceback.
_FROM_WORKER = re.compile(r"\ACaught .*\n(?:.*\n)*\S*ImageError: (.*)", re.MULTILINE)


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


def open_image(path: Path) -> torch.Tensor:
    """Read a file to uint8 RGB [3, H, W]."""
    return decode_image(read_image_file(path), str(path))


def read_image_file(path: Path) -> bytes:
    """The bytes of an image file; says why when there are none."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{path}: is a folder, not an image")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path}: is not a regular file")
        if status.st_size == 0:
            raise ImageError(f"{path}: is empty (0 bytes)")
        if status.st_size > MAX_FILE_BYTES:
            raise ImageError(f"{path}: {status.st_size / 1e6:.0f} MB is more than an image may have")
        return path.read_bytes()
    except FileNotFoundError:
        raise ImageError(f"{path}: no such file") from None
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from error


def inspect_image(path: Path) -> ImageFacts:
    """Header and end of a file: finds missing, empty, foreign, oversized and truncated ones cheaply."""
    raw = read_image_file(path)
    facts = _facts(raw, str(path))
    if not _ends_as_it_should(raw, facts.file_format):
        decode_image(raw, str(path))  # only the decoder can tell: bytes after the end are allowed
    return facts


def decode_image(raw: bytes, name: str, *, apply_orientation: bool = True) -> torch.Tensor:
    """Decode the content of an image file to uint8 RGB [3, H, W]; `name` is for messages."""
    facts = _facts(raw, name)
    if facts.file_format in ("JPEG", "MPO") and facts.mode in ("RGB", "L"):
        return _decode_jpeg(raw, name, apply_orientation)
    return _decode_with_pillow(raw, name, apply_orientation)


def read_label_image(path: Path) -> npt.NDArray[np.uint8]:
    """A one-channel picture whose values are classes and not colours, [H, W]; no orientation is applied."""
    import numpy as np
    from PIL import Image

    raw, name = read_image_file(path), str(path)
    if _facts(raw, name).mode not in ("L", "P"):
        raise ImageError(f"{name}: is not a picture of class numbers")
    with _one_line_reasons(name):
        return np.array(Image.open(io.BytesIO(raw), formats=FORMATS))


def decode_to_annotated_size(raw: bytes, name: str, width: int | None, height: int | None) -> torch.Tensor:
    """Decode so that pixels and annotations match.

    Where the annotated size is that of the stored pixels and not of the turned picture, the
    annotations were made without the EXIF orientation: then it is not applied.
    """
    image = decode_image(raw, name)
    if width is None or height is None or _size(image) == (width, height):
        return image
    stored = decode_image(raw, name, apply_orientation=False)
    if _size(stored) == (width, height):
        return stored
    shown_width, shown_height = _size(image)
    raise ImageError(f"{name}: is {shown_width} x {shown_height}, its annotations say {width} x {height}")


def _decode_jpeg(raw: bytes, name: str, apply_orientation: bool) -> torch.Tensor:
    # torchvision's decoder is 1.2 to 1.4 x as fast as Pillow at 320-640 px, gives the same pixels, and
    # its planar result makes the step to float twice as fast.
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    content = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    try:
        decoded: torch.Tensor = decode_jpeg(
            content, mode=ImageReadMode.RGB, apply_exif_orientation=apply_orientation
        )
    except RuntimeError:
        # Pillow reads some files that torchvision refuses, and names the reason for the others.
        return _decode_with_pillow(raw, name, apply_orientation)
    return decoded


def _decode_with_pillow(raw: bytes, name: str, apply_orientation: bool) -> torch.Tensor:
    import numpy as np
    import torch
    from PIL import Image, ImageOps

    with _one_line_reasons(name):
        picture: Image.Image = Image.open(io.BytesIO(raw), formats=FORMATS)
        picture.load()
        if apply_orientation:
            picture = ImageOps.exif_transpose(picture)
        pixels = np.asarray(_to_rgb(picture, name))
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _to_rgb(picture: Image, name: str) -> Image:
    import numpy as np
    from PIL import Image

    if picture.mode in _SIXTEEN_BIT:
        # Pillow's own conversion clips 16-bit values at 255, which gives a white picture.
        wide = np.asarray(picture).astype(np.int64).clip(0, 65535)
        picture = Image.fromarray((wide >> 8).astype(np.uint8))
    elif picture.mode == "F":
        raise ImageError(f"{name}: has floating-point pixels without a known range")
    return picture.convert("RGB")


def _facts(raw: bytes, name: str) -> ImageFacts:
    from PIL import Image

    if raw[:256].lstrip()[:1] == b"<":
        raise ImageError(f"{name}: is a text or HTML page, not an image")
    with _one_line_reasons(name):
        picture = Image.open(io.BytesIO(raw), formats=FORMATS)
        width, height = picture.size
        turned = picture.getexif().get(_ORIENTATION_TAG, 1) in (5, 6, 7, 8)
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name}: {width} x {height} is more than the limit of {MAX_PIXELS / 1e6:.0f} megapixels"
        )
    shown = (height, width) if turned else (width, height)
    return ImageFacts(*shown, picture.format or "", picture.mode, width, height)


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
        raise ImageError(f"{name}: is more than the limit of {MAX_PIXELS / 1e6:.0f} megapixels") from None
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ImageError(f"{name}: cannot be decoded: {reason}") from error


def _ends_as_it_should(raw: bytes, file_format: str) -> bool:
    tail = raw[-64:].rstrip(b"\0")
    if file_format in ("JPEG", "MPO"):
        return tail.endswith(b"\xff\xd9")
    return file_format == "PNG" and b"IEND" in tail


def _size(image: torch.Tensor) -> tuple[int, int]:
    return int(image.shape[2]), int(image.shape[1])
