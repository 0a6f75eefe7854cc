"""VOC annotation files. They come from strangers: entities and outside references are refused unread.

VOC counts pixels from 1 and includes the last one: a box (1, 1, 500, 375) covers an image of 500 x 375.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.data.annotations.records import Box
from detscope.data.annotations.values import LARGEST_SIDE
from detscope.errors import InputError
from detscope.limits import require_within


class VocXmlError(InputError):
    """An annotation file that cannot be used."""


@dataclass(frozen=True)
class VocObject:
    """One object as written; the box may still be nonsense."""

    name: str
    box: Box | None  # None: without four numbers
    difficult: bool


@dataclass(frozen=True)
class VocFile:
    """One annotation file."""

    file_name: str
    width: int | None
    height: int | None
    objects: tuple[VocObject, ...]


def read_voc_xml(path: Path) -> VocFile:
    """Read one annotation file; errors are one line and hold nothing of its content."""
    root = _parsed(path)
    size, objects = root.find("size"), root.findall("object")
    require_within("image_objects", len(objects), f"{path}", VocXmlError)
    return VocFile(
        _text(root, "filename"),
        _whole(size, "width"),
        _whole(size, "height"),
        tuple(map(_object, objects)),
    )


def _parsed(path: Path) -> Any:
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
    from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

    try:
        require_within("label_bytes", path.stat().st_size, f"{path}", VocXmlError)
        return fromstring(path.read_bytes(), forbid_dtd=True)
    except OSError as error:
        raise VocXmlError(f"{path}: cannot be read: {error.strerror}") from error
    except DefusedXmlException:
        raise VocXmlError(
            f"{path}: defines entities or refers to other files, which is refused",
            "an annotation needs neither; make the file anew",
        ) from None
    except (ParseError, ValueError, LookupError) as error:
        position = getattr(error, "position", None)
        where = f", line {position[0]}" if position else ""
        raise VocXmlError(f"{path}{where}: is not well-formed XML") from None


def _object(element: Any) -> VocObject:
    return VocObject(
        _text(element, "name"), _box(element.find("bndbox")), _text(element, "difficult") not in ("", "0")
    )


def _box(bounds: Any) -> Box | None:
    if bounds is None:
        return None
    try:
        left, top, right, bottom = (
            float(_text(bounds, key) or "none") for key in ("xmin", "ymin", "xmax", "ymax")
        )
    except ValueError:
        return None
    return left - 1, top - 1, right, bottom


def _text(element: Any, key: str) -> str:
    return (element.findtext(key) or "").strip()


def _whole(element: Any, key: str) -> int | None:
    try:
        value = int(float(_text(element, key))) if element is not None else 0
    except (ValueError, OverflowError):
        return None
    return value if 0 < value <= LARGEST_SIDE else None  # some tools write 0 where they did not look
