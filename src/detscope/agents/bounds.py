"""Answers that stay below a size: pages of whole rows, and what was shortened is said."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from detscope.analyze.figure import Figure
from detscope.errors import InputError

MOST_BYTES = 8000  # of an answer as JSON in UTF-8
DIGITS = 5  # of a number: what a reader compares, not what a program computes with
MOST_ROWS = 500  # of a page: no answer holds more
# what is tried where one row alone is too long: letters of a text, items of a list; intervals stay whole
_SHORTER = ((5000, 100), (3000, 60), (1500, 40), (700, 20), (300, 10), (150, 6), (60, 4))


Row = TypeVar("Row")
Told = dict[str, object]  # an answer as JSON


class Answer(Figure, frozen=True, kw_only=True):
    """What a tool answers; fields that are not there are empty or unknown, numbers have five digits."""

    cut: tuple[str, ...] = ()  # fields shortened for want of room; `detscope show RUN --json` has them whole


class Page(Answer, frozen=True, kw_only=True):
    """Some of the rows that were asked for."""

    total: int = 0  # rows there are
    offset: int = 0  # of the first row here
    left_out: int = 0  # rows behind the last one here
    next: str | None = None  # how to ask for them


def fill_page(
    make: Callable[[Sequence[Row]], Page], rows: Sequence[Row], offset: int, limit: int | None
) -> Told:
    """As many rows from `offset` on as have room, whole; of one that has none alone, its beginning."""
    asked = rows[offset : offset + min(limit or MOST_ROWS, MOST_ROWS)]

    def page(count: int) -> Page:
        behind = max(0, len(rows) - offset - count)
        again = f"ask again with offset={offset + count}" if behind else None
        return msgspec.structs.replace(
            make(asked[:count]), total=len(rows), offset=offset, left_out=behind, next=again
        )

    fits, too_many = 0, len(asked) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if _has_room(shorten_answer(page(middle))) else (fits, middle)
    return fit_answer(page(fits or min(1, len(asked))))


def fit_answer(answer: Answer) -> Told:
    """The answer as JSON; long lists and texts in it are cut until it has room."""
    for most in ((), *_SHORTER):
        told = shorten_answer(answer, *most)
        if _has_room(told):
            return told
    raise InputError("the answer has no room in 8 kB", "ask for less, or use detscope show RUN --json")


def dump_answer(told: Told) -> str:
    """The text of an answer."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def shorten_answer(answer: Answer, texts: int = sys.maxsize, items: int = sys.maxsize) -> Told:
    """The answer as JSON with texts of at most so many letters and lists of at most so many items."""
    cut: list[str] = []

    def shorten(value: object, place: str) -> object:
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
        if isinstance(value, str) and len(value) > texts:
            cut.append(f"{place}: {len(value) - texts} of {len(value)} letters left out")
            return value[:texts] + "…"
        if isinstance(value, msgspec.Struct):
            return {
                field.encode_name: shorten(given, f"{place}.{field.encode_name}".lstrip("."))
                for field in msgspec.structs.fields(value)
                if not ((given := getattr(value, field.name)) == field.default and _is_empty(given))
            }
        if isinstance(value, list | tuple):
            if len(value) > items:
                cut.append(f"{place}: {len(value) - items} of {len(value)} left out")
            return [shorten(item, f"{place}[{number}]") for number, item in enumerate(value[:items])]
        return value

    told = shorten(answer, "")
    assert isinstance(told, dict)
    return {**told, "cut": cut} if cut else told


def _is_empty(value: object) -> bool:
    """Whether a field that has this by default can be left out without a word; 0 is a figure."""
    return value is None or value is False or value in ("", ())


def _has_room(told: Told) -> bool:
    return len(dump_answer(told).encode()) < MOST_BYTES
