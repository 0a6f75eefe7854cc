"""Numbers, names and places as annotation files give them: taken as meant, or refused with a word."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from detscope.errors import InputError
from detscope.limits import read_within_limit

LARGEST_SIDE = 1_000_000  # of an image, in pixels; formats end at 65,535
_LARGEST = 2**62
_LONGEST_NAME, _LONGEST_PART = 2000, 255  # what file systems take, in bytes


def parse_whole(value: Any) -> int:
    """A whole number, also as `1.0` or `"1"`; ValueError for anything else: 1.5 is no id."""
    if isinstance(value, str) and len(value) < 20 and value.isascii():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) >= _LARGEST:
        raise ValueError(f"{shorten_value(value)} is not a whole number")
    return value


def parse_number(value: Any) -> float:
    """A number as float; infinity and NaN pass, so that they are told of where they stand."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shorten_value(value)} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def require_name(value: Any) -> str:
    """A text that can be printed, and be the name of a file; ValueError for anything else."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shorten_value(value)} is not a name")
    try:
        raw = value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("the name has characters that are none (half of a pair)") from None
    if b"\0" in raw:
        raise ValueError("the name has a NUL in it")
    if len(raw) > _LONGEST_NAME or any(len(part) > _LONGEST_PART for part in raw.split(b"/")):
        raise ValueError("the name is longer than file systems take")
    return value


def leads_out(name: str, start: Path, homes: tuple[Path, ...]) -> bool:
    """Whether a file's name, read from a folder, leads out of all folders of its data set."""
    if not name.startswith("/") and ".." not in name.split("/"):
        return False
    place = Path(os.path.normpath((start / name).absolute()))
    return not any(place.is_relative_to(os.path.normpath(home.absolute())) for home in homes)


def relative_name(path: Path, folder: Path) -> str:
    """The name of a file below a folder; its whole path where it lies elsewhere."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def shorten_value(value: Any) -> str:
    """A value in a few characters; of a list or a table its kind alone, for it may be endless."""
    if isinstance(value, list | tuple | dict):
        return "a list" if isinstance(value, list | tuple) else "a table"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of many digits"
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def read_lines(path: Path, limit_name: str = "label_bytes") -> list[str]:
    """Lines of a text file with something in them."""
    try:
        text = read_within_limit(limit_name, path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text", "save it as UTF-8") from None
    if "\0" in text:
        raise InputError(f"{path}: has NUL characters in it and is not text", "save it as UTF-8")
    return [line.strip() for line in text.splitlines() if line.strip()]
