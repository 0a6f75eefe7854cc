"""What sections share: colours that everybody can tell apart, and small shapes of charts."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.report.figures import percent
from detscope.report.model import Series

# Okabe and Ito's colours; the same name has the same colour in every chart
BLUE, ORANGE, GREEN, SKY, YELLOW, RED, PINK, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#56B4E9",
    "#F0E442",
    "#D55E00",
    "#CC79A7",
    "#8A97A6",
)
PHASE_COLOURS = {
    "data": ORANGE,
    "transfer": YELLOW,
    "forward": SKY,
    "backward": RED,
    "optimizer": GREEN,
    "other": GREY,
}
# memory from the ground up: what stays comes first, what comes and goes lies on top of it
CATEGORY_COLOURS = {
    "parameters": BLUE,
    "optimizer": PINK,
    "gradients": RED,
    "inputs": GREEN,
    "activations": SKY,
    "temporary": ORANGE,
    "workspace": YELLOW,
    "unknown": GREY,
}
PALETTE = (BLUE, ORANGE, GREEN, SKY, RED, PINK, YELLOW, GREY)
FORWARD, BACKWARD = SKY, RED


def one_bar(parts: Sequence[tuple[str, float, str]], unit: str = "ms") -> list[Series]:
    """One stacked bar whose parts add up to the whole: (name, value, colour)."""
    whole = sum(value for _, value, _ in parts) or 1.0
    return [
        Series(
            name,
            [value],
            [""],
            colour,
            "bars",
            texts=[f"{name} {percent(value / whole)}" if value / whole > 0.06 else ""],
            details=[f"{name}: {value:.3f} {unit} ({percent(value / whole)})"],
        )
        for name, value, colour in parts
    ]


def paler(colour: str, share: float) -> str:
    """A colour mixed with white."""
    parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)


def is_dark(colour: str) -> bool:
    """Whether white letters read better on a colour than black ones."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 120


def shown_name(name: str) -> str:
    """A stage as people say it: roi_heads becomes RoI heads."""
    words = name.replace("_", " ")
    known = {"rpn": "RPN", "fpn": "FPN", "roi heads": "RoI heads"}
    return known.get(words, words[:1].upper() + words[1:])


def takes(name: str) -> str:
    """Singular or plural: RoI heads take, RPN takes."""
    return "take" if shown_name(name).endswith("heads") else "takes"
