"""Figures and names as text for people: units, shares, intervals; absent is `n/a`, never zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

from rich.text import Text

ABSENT = "n/a"
CANNOT_TELL = "cannot tell"
_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


def plain(value: str | float | None) -> str:
    """A name or sentence on one line, without characters that would steer a terminal."""
    text = value if isinstance(value, str) else str(value)
    return "".join(
        char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text
    )


def cell(value: str | float | None, style: str = "") -> Text:
    """A table cell of text that others chose; markup in it stays text."""
    return Text(ABSENT if value is None else plain(value), style=style)


def is_number(value: str | float | None) -> TypeGuard[float]:
    """A figure that can be printed: finite, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_sentence(text: str) -> str:
    """With a capital, unless it begins with a name of the code such as `roi_heads`."""
    first = text.partition(" ")[0]
    return text if any(mark in first.rstrip(".:,;") for mark in "_.:()") else text[:1].upper() + text[1:]


def number(value: float | str | None, digits: int | None = None) -> str:
    """A figure with as many digits as help; the reason, where there is a text instead of a figure."""
    if not is_number(value):
        return plain(value) if isinstance(value, str) else ABSENT
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    return f"{value:,.{digits}f}"


def with_unit(value: float | str | None, unit: str) -> str:
    """`12.3 ms`, `1.20 GB`; without the unit where there is no figure."""
    if not is_number(value):
        return number(value)
    if unit == "bytes":
        size, unit = next(pair for pair in _BYTES if abs(value) >= pair[0] or pair[0] == 1)
        value = value / size
    exact = unit in ("bytes", "cores") and float(value).is_integer()  # there is no half of one
    return f"{number(value, 0 if exact else None)} {unit}".rstrip()


def percent(value: float | str | None) -> str:
    """A share of 0 to 1 as `41.0 %`."""
    return f"{100 * value:.1f} %" if is_number(value) else number(value)


def signed_percent(value: float | None) -> str:
    """A change of 0.05 as `+5.0 %`."""
    return f"{100 * value:+.1f} %" if is_number(value) else ABSENT


def signed_interval(ends: tuple[float, float] | None) -> str:
    """`+1.0 % to +5.0 %`; nothing where it is not known or has no width."""
    return f"{signed_percent(ends[0])} to {signed_percent(ends[1])}" if ends and ends[0] != ends[1] else ""


def interval(value: Sequence[float] | None) -> str:
    """`[305, 320]`."""
    if isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value)):
        return f"[{number(value[0])}, {number(value[1])}]"
    return ABSENT


def count(value: float | str | None) -> str:
    """`41.8 M`, `1,234`."""
    if not is_number(value):
        return number(value)
    return f"{value / 1e6:,.1f} M" if value >= 100_000 else f"{value:,.0f}"
