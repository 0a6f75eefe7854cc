"""JSON Schema of what `--json` prints, from the figures' types and the comments behind their fields."""

from __future__ import annotations

import inspect
import io
import tokenize
from collections.abc import Iterator
from typing import Any

import msgspec

from detscope.analyze.figure import Figure

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]  # a JSON Schema is what others may read; ours holds nothing untyped


def schema_of(figure: type[Figure], title: str, version: int) -> Schema:
    """The schema of a figure and of all that it holds; nothing beside what it names is allowed."""
    (root,), definitions = msgspec.json.schema_components([figure], ref_template="#/$defs/{name}")
    described = {one.__name__: one for one in _all_figures(Figure)}
    for name, definition in definitions.items():
        if "properties" not in definition:
            continue
        definition["additionalProperties"] = False
        for field, text in field_comments(described[name]).items() if name in described else ():
            encoded = _encoded_name(described[name], field)
            if encoded in definition["properties"]:
                definition["properties"][encoded]["description"] = text
    return {"$schema": DIALECT, "title": title, "version": version, **root, "$defs": definitions}


def _all_figures(base: type[Figure]) -> Iterator[type[Figure]]:
    for one in base.__subclasses__():
        yield one
        yield from _all_figures(one)


def _encoded_name(figure: type[Figure], field: str) -> str:
    return next((one.encode_name for one in msgspec.structs.fields(figure) if one.name == field), field)


def field_comments(figure: type[Figure]) -> dict[str, str]:
    """What stands behind each field, of the types it is made from as well."""
    found: dict[str, str] = {}
    for one in reversed(figure.__mro__):
        if not (isinstance(one, type) and issubclass(one, Figure)) or one is Figure:
            continue
        names: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(one)).readline):
            if token.type == tokenize.NAME and token.start[1] == 4:
                names[token.start[0]] = token.string
            elif token.type == tokenize.COMMENT and token.start[0] in names:
                found[names[token.start[0]]] = token.string.removeprefix("#").strip()
    return found
