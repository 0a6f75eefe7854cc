"""Colours and order of memory categories, the same in every picture."""

from __future__ import annotations

from detscope.report.palette import PALETTE, Colour

ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = PALETTE
INK: Colour = (38, 38, 44)
FAINT: Colour = (118, 118, 126)
HAIRLINE: Colour = (222, 222, 228)
PAPER: Colour = (255, 255, 255)

# from the ground up: what stays comes first, what comes and goes lies on top of it
CATEGORY_COLOURS: dict[str, Colour] = {
    "parameters": BLUE,
    "optimizer": PURPLE,
    "gradients": VERMILION,
    "inputs": GREEN,
    "activations": SKY,
    "temporary": ORANGE,
    "workspace": YELLOW,
    "unknown": (160, 160, 166),
}
CATEGORY_NAMES = {"optimizer": "optimizer state"}


def category_name(category: str) -> str:
    """A category as people read it."""
    return CATEGORY_NAMES.get(category, category)


def lighter(colour: Colour, share: float) -> Colour:
    """A colour mixed with white."""
    red, green, blue = (round(value + (255 - value) * share) for value in colour)
    return red, green, blue
