"""Ways to spoil a file: by its structure, or byte by byte. The same seed spoils the same way."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

OTHER_TYPES: tuple[Any, ...] = (None, True, 0, -1, 1.5, "", "text", [], {}, [[]], {"a": 1}, [None])
HUGE: tuple[Any, ...] = (10**400, 2**70, -(2**63), 1e308, -1e308, 1e12, -1, float("inf"), float("nan"), 0)
STRANGE_TEXTS = (
    "\0",
    "a\0b",
    "\ud800",
    "\x1b[2J",
    "../../../etc/passwd",
    "/etc/passwd",
    "x" * 5000,
    "\u202e",
)
DEEP = 3000
_REPEATED = 300

Tree = Any
Mutation = Callable[[Tree, Random], Tree]


def place_of(tree: Tree, draw: Random) -> tuple[Any, Any]:
    """A container within the tree and a key of it; shallow places as often as deep ones."""
    here = tree
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = draw.choice(keys)
        below = here[key]
        if not isinstance(below, dict | list) or not below or draw.random() < 0.25:
            return here, key
        here = below


def swap_type(tree: Tree, draw: Random) -> Tree:
    """Another type in some place."""
    return _put(tree, draw, lambda old: draw.choice([v for v in OTHER_TYPES if type(v) is not type(old)]))


def nest_deeply(tree: Tree, draw: Random) -> Tree:
    """A list in a list in a list."""
    nested: Any = []
    for _ in range(DEEP):
        nested = [nested]
    return _put(tree, draw, lambda _: nested)


def put_huge_number(tree: Tree, draw: Random) -> Tree:
    """A number beyond its type, or none at all."""
    return _put(tree, draw, lambda _: draw.choice(HUGE))


def put_strange_text(tree: Tree, draw: Random) -> Tree:
    """NUL, half characters, escapes, names that lead elsewhere."""
    return _put(tree, draw, lambda _: draw.choice(STRANGE_TEXTS))


def repeat_part(tree: Tree, draw: Random) -> Tree:
    """The same again, many times or twice."""
    here, key = place_of(tree, draw)
    if isinstance(here, list):
        times = draw.choice((2, _REPEATED))
        here[key:key] = [copy.deepcopy(here[key]) for _ in range(times)]
    else:
        here[draw.choice(list(here))] = copy.deepcopy(here[key])
    return tree


def remove_part(tree: Tree, draw: Random) -> Tree:
    """Something is missing."""
    here, key = place_of(tree, draw)
    del here[key]
    return tree


def _put(tree: Tree, draw: Random, made: Callable[[Any], Any]) -> Tree:
    here, key = place_of(tree, draw)
    here[key] = made(here[key])
    return tree


STRUCTURAL: dict[str, Mutation] = {
    "types swapped": swap_type,
    "depth": nest_deeply,
    "huge numbers": put_huge_number,
    "NUL and strange texts": put_strange_text,
    "duplicates": repeat_part,
    "parts missing": remove_part,
}


def mutate_tree(tree: Tree, kind: str, draw: Random) -> Tree:
    """A copy of a tree, spoilt in one to three places of one kind."""
    spoilt = copy.deepcopy(tree)
    for _ in range(1 if kind == "depth" else draw.randint(1, 3)):
        if spoilt:
            spoilt = STRUCTURAL[kind](spoilt, draw)
    return spoilt


def as_json(tree: Tree) -> bytes:
    """JSON of whatever it holds; a lone half of a character stays one, and depth is no hindrance."""
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return json.dumps(_without_depth(tree)).replace('"<deep>"', "[" * DEEP + "]" * DEEP).encode()


def _without_depth(tree: Tree, depth: int = 0) -> Tree:
    if depth > 50:
        return "<deep>"
    if isinstance(tree, dict):
        return {key: _without_depth(value, depth + 1) for key, value in tree.items()}
    if isinstance(tree, list):
        found = [_without_depth(value, depth + 1) for value in tree]
        return "<deep>" if found == ["<deep>"] else found
    return tree


def cut(data: bytes, draw: Random) -> bytes:
    """The end is missing."""
    return data[: draw.randrange(len(data))]


def flip_bytes(data: bytes, draw: Random) -> bytes:
    """Some bytes are others."""
    spoilt = bytearray(data)
    for _ in range(draw.choice((1, 3, 30))):
        spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
    return bytes(spoilt)


def double_bytes(data: bytes, draw: Random) -> bytes:
    """A stretch of the file comes twice."""
    begin = draw.randrange(len(data))
    end = min(len(data), begin + draw.choice((10, 1000)))
    return data[:end] + data[begin:]


BYTEWISE: dict[str, Callable[[bytes, Random], bytes]] = {
    "cuts": cut,
    "bytes flipped": flip_bytes,
    "bytes doubled": double_bytes,
}
KINDS = (*STRUCTURAL, *BYTEWISE)
