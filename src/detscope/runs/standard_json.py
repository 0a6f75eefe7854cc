"""Plain data as every reader of JSON takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]  # as it was read


def as_standard_json(value: object) -> object:
    """The same data without what JSON cannot say: NaN is null, halves of characters are spelled out."""
    if isinstance(value, str):
        return as_plain_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, msgspec.Struct):
        bounded = getattr(value, "for_json", None)  # of a figure with more rows than anybody reads
        value = value if bounded is None else bounded()
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {encoded: as_standard_json(getattr(value, name)) for encoded, name in names}
    if isinstance(value, Mapping):
        return {as_plain_text(str(key)): as_standard_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_standard_json(item) for item in value]
    return value


def as_plain_text(text: str) -> str:
    """The same text, with what UTF-8 has no bytes for spelled out: names of files may be any bytes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
