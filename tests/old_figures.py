"""Figures of version 1 of the summary, looked up in today's through the table `analyze/old_keys.tsv`.

A line of the table is an old key, a tab and its successor; what lies below moves along. Of two lines for
one key one must hold. In an old key `[]` is each item of a list and `{}` each name of a map. In a successor,
in the same order,
`[]` is the item at the same place;
`{}` is the row of the list that has this name, `{host}` the row that is always meant;
`{*}` is the row that is named by all that follows in the old key;
`{stage=}` leaves the rows that have this stage, `{about=memory}` those of which that always holds.
`$defs.X` and `$defs.X.field` are what the schema says of them: a text that is the same in all runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("name", "rank", "reason", "target", "key", "pid", "measure")  # what tells rows of a list apart
UNKNOWN = re.compile(
    r"n/a \((.*)\)$|cannot tell: (.*)$|a lower bound: (.*)$"
)  # version 1 in a number's place
_PART = re.compile(r"\[\]|\{[^}]*\}|[^.\[\]{}]+")
Key = tuple[str, ...]
Way = tuple[str | int, ...]  # to a figure of one summary: names and places


@dataclass(frozen=True)
class Successor:
    """Where an old figure is now: a key, with the names and places of the rows that are meant."""

    key: Key
    rows: Way


class OldKeys:
    """The table and the schema of today's figures."""

    def __init__(self, file: Path, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.table: dict[Key, list[Key]] = {}
        for line in file.read_text().splitlines():
            old, new = line.split("\t")
            self.table.setdefault(split_key(old), []).append(split_key(new))

    def unknown_keys(self) -> list[str]:
        """Successors that no summary can have."""
        return [".".join(key) for keys in self.table.values() for key in keys if not self._is_known(key)]

    def differences(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
        """Old figures without a successor, or with another value."""
        found = []
        for way, value in list_figures(old):
            successors = self._find_successors(way)
            if not any(self._agrees(value, new, one) for one in successors):
                at = ".".join("[]" if isinstance(part, int) else part for part in way)
                found.append(f"{at} was {value!r}, and is now at {'.'.join(successors[0].key)}")
        return found

    def _find_successors(self, way: Way) -> list[Successor]:
        """By the longest line of the table that fits; where none does, the figure has stayed."""
        fitting = [(len(old), -old.count("{}"), old) for old in self.table if _fits(old, way)]
        if not fitting:
            return [Successor(_general(way), _places(way))]
        old = max(fitting)[-1]
        rest = way[len(old) :]
        rows = tuple(part for key, part in zip(old, way, strict=False) if key in ("[]", "{}"))
        whole = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest).lstrip(".")
        return [
            Successor(new, (*rows, whole))
            if "{*}" in new
            else Successor((*new, *_general(rest)), (*rows, *_places(rest)))
            for new in self.table[old]
        ]

    def _agrees(self, old: Any, summary: Mapping[str, Any], successor: Successor) -> bool:
        key = successor.key
        if not self._is_known(key):
            return False
        if key[0] == "$defs":
            return str(old).lower() in self._described(key).lower()
        try:
            now = look_up(summary, successor)
            beside = look_up(summary, Successor(key[:-1], successor.rows)) if len(key) > 1 else summary
        except LookupError:
            return False
        if agree(old, now):
            return True
        if old == "measured":  # a peak that is no lower bound
            return now is None
        if isinstance(old, str) and (match := UNKNOWN.match(old)):
            reasons = [text for name, text in beside.items() if name.endswith("why")]
            return not isinstance(now, int | float) and match[match.lastindex or 0] in reasons
        return False

    def _described(self, key: Key) -> str:
        definition = self.schema["$defs"][key[1]]
        text: str = (definition if len(key) == 2 else definition["properties"][key[2]])["description"]
        return text

    def _is_known(self, key: Key) -> bool:
        if key[0] == "$defs":
            return key[1] in self.schema["$defs"]
        nodes = [self.schema]
        for part in key:
            nodes = [inner for node in nodes for one in self._open(node) for inner in _step_down(one, part)]
        return bool(nodes)

    def _open(self, node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The alternatives of a node, references followed."""
        if "$ref" in node:
            return self._open(self.schema["$defs"][node["$ref"].rpartition("/")[2]])
        return [one for inner in node.get("anyOf", ()) for one in self._open(inner)] or [node]


def split_key(key: str) -> Key:
    """`a.b[].c` as its parts."""
    return tuple(_PART.findall(key))


def list_figures(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """All that is neither a map nor a list, with the way to it."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from list_figures(one, (*way, name))
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from list_figures(one, (*way, place))
    else:
        yield way, value


def look_up(summary: Any, successor: Successor) -> Any:
    """The figure today; a LookupError where it has no such row."""
    rows, value = list(successor.rows), summary
    for part in successor.key:
        if value is None:
            return None
        if part == "[]":
            value = value[int(rows.pop(0))]
        elif part.startswith("{"):
            wanted = part[1:-1].removeprefix("*")
            wanted += str(rows.pop(0)) if wanted.endswith("=") or not wanted else ""
            value = _choose_rows(value, wanted)
        else:
            value = value[part]
    return value


def agree(old: Any, new: Any) -> bool:
    """Equal numbers, equal texts; no map is no rows."""
    if old is None and new == []:
        return True
    if isinstance(old, bool) or isinstance(new, bool) or not isinstance(old, int | float):
        return bool(old == new)
    return isinstance(new, int | float) and math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)


def _choose_rows(rows: Sequence[Mapping[str, Any]], wanted: str) -> Any:
    field, is_filter, text = wanted.partition("=")
    if is_filter:
        return [row for row in rows if str(row[field]) == text]
    named = [row for row in rows if any(str(row[name]) == wanted for name in NAMES if name in row)]
    return named[0]


def _fits(old: Key, way: Way) -> bool:
    return len(old) <= len(way) and all(
        isinstance(part, int) if key == "[]" else isinstance(part, str) and key in ("{}", part)
        for key, part in zip(old, way, strict=False)
    )


def _general(way: Way) -> Key:
    return tuple("[]" if isinstance(part, int) else part for part in way)


def _places(way: Way) -> Way:
    return tuple(part for part in way if isinstance(part, int))


def _step_down(node: Mapping[str, Any], part: str) -> Iterator[Mapping[str, Any]]:
    items = node.get("items") or next(iter(node.get("prefixItems", ())), None)
    if part.startswith("{") and "=" in part:
        yield node
    elif part == "[]" or part.startswith("{"):
        if items:
            yield items
    elif part in node.get("properties", {}):
        yield node["properties"][part]
