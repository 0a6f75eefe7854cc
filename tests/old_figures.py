"""Figures of version 1 of the summary looked up in today's, through the table `analyze/old_keys.tsv`.

A line of the table is an old key, a tab and its successor; what lies below moves along. In an old key `[]` is
each item of a list and `{}` each name of a map. In a successor, in the same order, `[]` is the item of the same
place, `{}` the row of the list that has this name, `{host}` the row that is always meant, `{stage=}` the rows
that have this stage, `{*}` the row named by all that follows in the old key, `{about=memory}` those of which that always holds. `$defs.X` is what the schema says of X:
a text that is the same in all runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("name", "rank", "reason", "target", "key", "pid", "measure")  # what tells rows of a list apart
_PART = re.compile(r"\[\]|\{[^}]*\}|[^.\[\]{}]+")
Key = tuple[str, ...]
Path_ = tuple[str | int, ...]


def split_key(key: str) -> Key:
    """`a.b[].c` as its parts."""
    return tuple(_PART.findall(key))


def read_table(file: Path) -> dict[Key, list[Key]]:
    """Old keys and where they have gone; some are found in one of several places."""
    table: dict[Key, list[Key]] = {}
    for line in file.read_text().splitlines():
        old, new = line.split("\t")
        table.setdefault(split_key(old), []).append(split_key(new))
    return table


def list_figures(value: Any, at: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """All that is no map or list, with the way to it; empty ones too."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, Mapping | list):
        yield at, value
    for key, one in inner:
        yield from list_figures(one, (*at, key))


@dataclass(frozen=True)
class Successor:
    """Where an old figure is now: a key, with the names and places of the rows that are meant."""

    key: Key
    names: tuple[str | int, ...]


def find_successors(path: Path_, table: Mapping[Key, Sequence[Key]]) -> list[Successor]:
    """By the longest line of the table that fits; where none does, the figure has stayed."""
    fitting = [(len(old), -old.count("{}"), old) for old in table if _fits(old, path)]
    if not fitting:
        return [Successor(tuple("[]" if isinstance(part, int) else part for part in path), _rows(path))]
    old = max(fitting)[-1]
    rest = path[len(old) :]
    names = tuple(part for key, part in zip(old, path, strict=False) if key in ("[]", "{}"))
    if any("{*}" in new for new in table[old]):
        whole = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest).lstrip(".")
        return [Successor(new, (*names, whole)) for new in table[old]]
    below = tuple("[]" if isinstance(part, int) else part for part in rest)
    return [Successor((*new, *below), (*names, *_rows(rest))) for new in table[old]]


def _rows(path: Path_) -> tuple[int, ...]:
    return tuple(part for part in path if isinstance(part, int))


def _fits(old: Key, path: Path_) -> bool:
    if len(old) > len(path):
        return False
    return all(
        isinstance(part, int) if key == "[]" else isinstance(part, str) and key in ("{}", part)
        for key, part in zip(old, path, strict=False)
    )


def look_up(summary: Any, schema: Mapping[str, Any], successor: Successor) -> Any:
    """The figure today; a KeyError where the successor does not exist."""
    if successor.key[0] == "$defs":
        return schema["$defs"][successor.key[1]]["description"]
    names, value = list(successor.names), summary
    for part in successor.key:
        if value is None:
            return None
        if part == "[]":
            index = int(names.pop(0))
            value = value[index] if index < len(value) else _missing(successor)
        elif part.startswith("{"):
            wanted = part[1:-1].removeprefix("*")
            wanted += str(names.pop(0)) if wanted.endswith("=") or not wanted else ""
            value = _choose_rows(value, wanted, successor)
        else:
            value = value[part]
    return value


def _missing(successor: Successor) -> Any:
    raise KeyError(f"{successor} has no such row")


def _choose_rows(rows: Sequence[Mapping[str, Any]], wanted: str, successor: Successor) -> Any:
    field, is_filter, text = wanted.partition("=")
    if is_filter:
        return [row for row in rows if str(row[field]) == text]
    found = [row for row in rows if any(str(row[name]) == wanted for name in NAMES if name in row)]
    return found[0] if found else _missing(successor)


def is_known(schema: Mapping[str, Any], key: Key) -> bool:
    """Whether the schema has such a key."""
    if key[0] == "$defs":
        return key[1] in schema["$defs"]
    nodes = [schema]
    for part in key:
        nodes = [inner for node in nodes for inner in _step_down(_open(schema, node), part)]
    return bool(nodes)


def _open(schema: Mapping[str, Any], node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives of a node, references followed."""
    if "$ref" in node:
        return _open(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    return [one for inner in node.get("anyOf", ()) for one in _open(schema, inner)] or [node]


def _step_down(nodes: Sequence[Mapping[str, Any]], part: str) -> Iterator[Mapping[str, Any]]:
    for node in nodes:
        items = node.get("items") or next(iter(node.get("prefixItems", ())), None)
        if part.startswith("{") and "=" in part:
            yield node
        elif items and (part == "[]" or part.startswith("{")):
            yield items
        elif part in node.get("properties", {}):
            yield node["properties"][part]


def agree(old: Any, new: Any) -> bool:
    """Equal numbers, equal texts."""
    if isinstance(old, bool) or isinstance(new, bool) or not isinstance(old, int | float):
        return bool(old == new)
    return isinstance(new, int | float) and math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)
