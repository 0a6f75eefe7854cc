"""Figures made by hand: what a test gives, and the plainest value in every field that it does not name."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

Kind = TypeVar("Kind", bound=msgspec.Struct)


def made_figure(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """A figure from plain data by its JSON names; lists may hold mappings or figures."""
    hints = get_type_hints(kind)
    filled = {}
    for field in msgspec.structs.fields(kind):
        name = field.encode_name if field.encode_name in given else field.name
        if name in given:
            filled[field.name] = _given(hints[field.name], given[name])
        elif field.required:
            filled[field.name] = _plainest(hints[field.name])
    unknown = set(given) - {field.name for field in msgspec.structs.fields(kind)}
    assert unknown <= {field.encode_name for field in msgspec.structs.fields(kind)}, unknown
    return kind(**filled)


def _given(hint: Any, value: Any) -> Any:
    if value is None or isinstance(value, msgspec.Struct):
        return value
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        if isinstance(option, type) and issubclass(option, msgspec.Struct) and isinstance(value, Mapping):
            return made_figure(option, value)
        if isinstance(option, type) and hasattr(option, "_fields") and isinstance(value, list | tuple):
            return option(*value)  # an interval
        if get_origin(option) in (list, tuple) and isinstance(value, list | tuple):
            inner = get_args(option)[0]
            return get_origin(option)(_given(inner, item) for item in value)
    return value


def _plainest(hint: Any) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(None) in options:
        return None
    first = options[0]
    if get_origin(first) is Literal:
        return get_args(first)[0]
    if get_origin(first) in (list, tuple):
        return get_origin(first)()
    if isinstance(first, type) and issubclass(first, msgspec.Struct):
        return made_figure(first, {})
    return first()
