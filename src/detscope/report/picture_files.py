"""Drawn pictures as files: names that any image may have come with become names that are harmless."""

from __future__ import annotations

import io
import re
import unicodedata

import numpy as np
import numpy.typing as npt
from PIL import Image

_JPEG_LARGEST_SIDE = 65_500
_JPEG_QUALITY = 90
_LONGEST_STEM_BYTES = 120
_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")


def encode(pixels: npt.NDArray[np.uint8]) -> tuple[bytes, str]:
    """Pixels as the content of a file and the ending for its name."""
    buffer = io.BytesIO()
    if max(pixels.shape) > _JPEG_LARGEST_SIDE:
        Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue(), ".png"
    # colours at full resolution: thin coloured lines and letters fray otherwise
    Image.fromarray(pixels).save(buffer, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return buffer.getvalue(), ".jpg"


def unique_stem(name: str, taken: set[str]) -> str:
    """A safe name that no other picture has, also where upper and lower case are the same; remembers it."""
    stem = safe_stem(name)
    number, candidate = 1, stem
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{stem}-{number}"
    taken.add(candidate.casefold())
    return candidate


def safe_stem(name: str) -> str:
    """What is left of a file's name without folders, ending and everything but letters and digits."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    if last.lower().endswith(_IMAGE_ENDINGS):
        last = last.rpartition(".")[0]
    words = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", last))
    short = words.encode("utf-8", "ignore")[:_LONGEST_STEM_BYTES].decode("utf-8", "ignore")
    return short.strip("._-") or "picture"
