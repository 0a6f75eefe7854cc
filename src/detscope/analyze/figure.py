"""The base of all figures: what `--json` prints and `detscope schema` describes.

A figure that cannot be known is None, and a field beside it says why. The comment behind a field is its
definition; `detscope schema` takes it from there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Clock = Literal["host", "device"]  # whose time a figure is told in


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One group of figures; it cannot be changed, and has one shape."""


class Definition(Figure, frozen=True, kw_only=True):
    """What a number means."""

    name: str  # of the figure
    text: str  # what it means
