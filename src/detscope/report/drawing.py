"""Detections drawn into pictures: boxes with class names and scores, masks half-transparent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detscope.report.labels import LabelledBox, Rectangle, draw_labels
from detscope.report.palette import BLACK, Colour, colour_of
from detscope.report.picture_files import encode, unique_stem
from detscope.runs.atomic import storage_error, write_bytes

Pixels = npt.NDArray[np.uint8]

MASK_OPACITY = 0.5
READABLE_SIDE = 480  # smaller pictures may be enlarged, so that a label does not hide what it names
_SMALLEST_FONT, _LARGEST_FONT = 11, 96


@dataclass(frozen=True)
class Picture:
    """An image and what was found in it. Labels are class names; boxes are (x1, y1, x2, y2) in pixels."""

    name: str
    pixels: Pixels
    boxes: npt.NDArray[np.floating]
    labels: Sequence[str]
    scores: npt.NDArray[np.floating]
    masks: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.pixels.ndim != 3 or self.pixels.shape[2] != 3 or self.pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8 [H, W, 3], not {self.pixels.dtype} {self.pixels.shape}")
        if 0 in self.pixels.shape:
            raise ValueError(f"a picture without pixels: {self.pixels.shape}")
        count = len(self.labels)
        if self.boxes.shape != (count, 4) or self.scores.shape != (count,):
            raise ValueError(
                f"{count} labels do not fit boxes {self.boxes.shape} and scores {self.scores.shape}"
            )
        wanted = (count, *self.pixels.shape[:2])
        if self.masks is not None and (self.masks.shape != wanted or self.masks.dtype != np.bool_):
            raise ValueError(f"masks must be bool {wanted}, not {self.masks.dtype} {self.masks.shape}")


def draw(picture: Picture) -> Pixels:
    """The picture with its detections, best on top. A box that is not a number or outside is left out."""
    height, width = picture.pixels.shape[:2]
    weakest_first = [int(index) for index in np.argsort(picture.scores, kind="stable")]
    pixels = picture.pixels.copy()
    if picture.masks is not None:
        for index in weakest_first:
            _blend(pixels, picture.masks[index], colour_of(picture.labels[index]))
    canvas = Image.fromarray(pixels)
    pen = ImageDraw.Draw(canvas)
    shown = [
        LabelledBox(box, picture.labels[index], float(picture.scores[index]))
        for index in weakest_first
        if (box := _rectangle(picture.boxes[index], width, height)) is not None
    ]
    scale = _scale(width, height)
    for item in shown:
        _outline(pen, item.box, colour_of(item.name), line=max(1, round(scale / 160)))
    font_size = round(min(_LARGEST_FONT, max(_SMALLEST_FONT, scale / 24)))
    draw_labels(pen, shown[::-1], (width, height), font_size)
    return np.asarray(canvas)


def enlarged(picture: Picture) -> Picture:
    """A small picture a whole number of times larger, so that its labels can be read; others unchanged."""
    height, width = picture.pixels.shape[:2]
    times = min(6, READABLE_SIDE // max(height, width))
    if times < 2:
        return picture
    masks = None if picture.masks is None else picture.masks.repeat(times, axis=1).repeat(times, axis=2)
    pixels = picture.pixels.repeat(times, axis=0).repeat(times, axis=1)
    return replace(picture, pixels=pixels, boxes=picture.boxes * times, masks=masks)


def save_pictures(folder: Path, pictures: Sequence[Picture]) -> list[Path]:
    """Draw and write pictures, one file each in the given order; files that are there stay as they are."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = {path.stem.casefold() for path in folder.iterdir()}
    except OSError as error:
        raise storage_error(folder, error) from error
    paths = []
    for picture in pictures:
        data, ending = encode(draw(enlarged(picture)))
        path = folder / f"{unique_stem(picture.name, taken)}{ending}"
        write_bytes(path, data)
        paths.append(path)
    return paths


def _blend(pixels: Pixels, mask: npt.NDArray[np.bool_], colour: Colour) -> None:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return
    window = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    inside, part = mask[window], pixels[window]
    mixed = part[inside] * (1 - MASK_OPACITY) + np.array(colour) * MASK_OPACITY
    part[inside] = mixed.round().astype(np.uint8)
    part[_border(inside)] = colour


def _border(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The pixels of a mask that touch what is not the mask."""
    around = np.pad(mask, 1)
    inner = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    return mask & ~inner


def _rectangle(box: npt.NDArray[np.floating], width: int, height: int) -> Rectangle | None:
    """The pixels of a box's edges, clipped to the picture; None where there is nothing to draw."""
    if np.isnan(box).any():
        return None
    x1, x2 = sorted((float(box[0]), float(box[2])))
    y1, y2 = sorted((float(box[1]), float(box[3])))
    if x2 < 0 or y2 < 0 or x1 >= width or y1 >= height:
        return None
    # a box ends at the far edge of its last pixel
    right, bottom = min(x2, width) - 1, min(y2, height) - 1
    left, top = round(max(x1, 0)), round(max(y1, 0))
    left, top = min(left, width - 1), min(top, height - 1)
    return left, top, max(left, round(right)), max(top, round(bottom))


def _scale(width: int, height: int) -> float:
    """What the eye takes for the size of a picture: a panorama is not as large as its long side."""
    return float(min(max(width, height) / 2, min(width, height)))


def _outline(pen: ImageDraw.ImageDraw, rectangle: Rectangle, colour: Colour, line: int) -> None:
    left, top, right, bottom = rectangle
    if line > 1:  # a dark rim, so that a bright box is seen on a bright picture
        rim = max(1, line // 3)
        pen.rectangle((left - rim, top - rim, right + rim, bottom + rim), outline=BLACK, width=line + 2 * rim)
    pen.rectangle(rectangle, outline=colour, width=line)
