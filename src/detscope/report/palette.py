"""Colours of classes: the same name has the same colour in every picture, run and process."""

from __future__ import annotations

import hashlib

Colour = tuple[int, int, int]

BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)

# Okabe and Ito's colours, which people with any kind of colour blindness can tell apart; black is left
# out, as it disappears in shadows. More would be told apart by nobody: the label names the class.
PALETTE: tuple[Colour, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
# Chosen so that the five synthetic shapes differ, and so do person, bicycle, car, cat and dog.
_SALT = 86


def colour_of(name: str) -> Colour:
    """The colour of a class; Python's own hash differs from process to process."""
    digest = hashlib.sha256(f"{_SALT}{name}".encode("utf-8", "surrogatepass")).digest()
    return PALETTE[int.from_bytes(digest[:8], "big") % len(PALETTE)]


def text_on(colour: Colour) -> Colour:
    """Black or white, whichever reads better on `colour`."""
    red, green, blue = colour
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else WHITE
