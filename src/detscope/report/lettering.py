"""Text in pictures, in the one font that every installation of Pillow carries with it."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from PIL import ImageFont

from detscope.report.figures import plain

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@lru_cache(maxsize=32)
def font_of_size(size_pixels: int) -> Font:
    """Pillow's built-in font."""
    return ImageFont.load_default(size_pixels)


def drawable(text: str) -> str:
    """One line of text without accents, which the built-in font has no letters for."""
    decomposed = unicodedata.normalize("NFKD", plain(text))
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def text_width(text: str, font: Font) -> int:
    """Width in pixels."""
    return round(font.getlength(text))


def shortened(text: str, font: Font, width: int, keep_end: bool = False) -> str:
    """As much of `text` as fits into `width` pixels, with an ellipsis; empty where not even that fits."""
    if text_width(text, font) <= width:
        return text
    low, high = 0, min(len(text), max(0, width))  # no letter is narrower than a pixel
    while low < high:
        middle = (low + high + 1) // 2
        if text_width(_cut(text, middle, keep_end), font) <= width:
            low = middle
        else:
            high = middle - 1
    return _cut(text, low, keep_end) if low else ""


def _cut(text: str, letters: int, keep_end: bool) -> str:
    return f"…{text[-letters:]}" if keep_end else f"{text[:letters].rstrip()}…"
