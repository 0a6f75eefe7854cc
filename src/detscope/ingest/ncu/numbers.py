"""Numbers as Nsight Compute prints them: any locale's separators, and units with prefixes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_SPACES = dict.fromkeys(map(ord, " \t\u00a0\u202f\u2009\u2007'\u2019\u066c"), None)
_SHAPE = re.compile(r"[-+]?[\d.,\u066b]+(?:[eE][-+]?\d{1,3})?")
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NANOSECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
_TIME = re.compile(r"^(n|u|m|)(?:s|sec|second|seconds)$")
_SCALED = re.compile(
    r"^([KkMGT]?)(byte|bytes|hz|inst|cycle|sector|request|warp|thread|block|flop|instruction)s?$"
)
DOT, COMMA = ".", ","


def find_decimal_mark(texts: Iterable[str]) -> str:
    """The decimal mark of a listing, by its values that allow one reading only; a dot where none does.

    "1,234.5", "1,234,567" and "3.37" speak for the dot; "12.345,6", "0,125" and "3,37" for the comma;
    "12,345" alone says nothing, and is then 12345 as NVIDIA's tools print it.
    """
    votes = {DOT: 0, COMMA: 0}
    for text in texts:
        mark = _find_evident_mark(_strip_cell(text))
        if mark:
            votes[mark] += 1
    return COMMA if votes[COMMA] > votes[DOT] else DOT


def parse_number(text: str, mark: str = DOT) -> float | None:
    """The number in a cell; None where there is none ("n/a", "", "nan")."""
    bare = _strip_cell(text)
    if not _SHAPE.fullmatch(bare):
        return None
    bare = bare.replace("\u066b", DOT)
    own = _find_evident_mark(bare) or mark
    other = COMMA if own == DOT else DOT
    bare = bare.replace(other, "")
    if bare.count(own) > 1:
        bare = bare.replace(own, "")
    try:
        value = float(bare.replace(own, "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _strip_cell(text: str) -> str:
    """Without spaces that group digits, without a percent sign, without the list of instances behind."""
    return text.split("(", 1)[0].strip().rstrip("%").translate(_SPACES) if text else ""


def _find_evident_mark(bare: str) -> str | None:
    """The decimal mark, where only one reading makes sense."""
    dots, commas = bare.count(DOT), bare.count(COMMA)
    if dots and commas:
        return max((DOT, COMMA), key=bare.rfind)
    if dots + commas == 0:
        return None
    mark, other = (DOT, COMMA) if dots else (COMMA, DOT)
    if dots + commas > 1:
        return other  # "1,234,567": what repeats is no decimal mark
    before, _, after = bare.lstrip("+-").partition(mark)
    grouped = len(after) == 3 and after.isdigit() and 1 <= len(before) <= 3 and not before.startswith("0")
    return None if grouped else mark


def base_unit(unit: str) -> tuple[str, float]:
    """The unit without prefix and the factor to it: times in ns, rates per second."""
    unit = unit.strip()
    above, slash, below = unit.partition("/")
    name, factor = _split_prefix(above)
    if not slash:
        return name, factor
    duration = _TIME.match(below)
    if duration:
        return f"{name}/second", factor * 1e9 / _NANOSECONDS[duration[1]]
    below_name, below_factor = _split_prefix(below)
    return f"{name}/{below_name}", factor / below_factor


def _split_prefix(unit: str) -> tuple[str, float]:
    duration = _TIME.match(unit)
    if duration:
        return "ns", _NANOSECONDS[duration[1]]
    scaled = _SCALED.match(unit) or _SCALED.match(unit.lower()) or _SCALED.match(unit[:1] + unit[1:].lower())
    if scaled:
        return scaled[2].removesuffix("s"), _PREFIXES[scaled[1]]
    return unit, 1.0
