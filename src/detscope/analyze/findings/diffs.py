"""A change of the code as a unified diff, where a statement is exactly what a rule expects.

Statements were kept when the run was recorded: no file of the user's is opened here, and none is written.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

MOST_CHARACTERS = 2000  # of a diff: more is to be written by a person
_ALONE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)  # need no brackets before a dot


class Statement(msgspec.Struct, frozen=True):
    """A statement of a file, with the lines around it; lines are counted from 1."""

    path: str  # as a patch names the file
    begin: int  # of `lines`
    lines: tuple[str, ...]
    first: int  # of the statement
    last: int
    has_torch: bool  # whether `torch` is a name of the file

    @property
    def own_lines(self) -> tuple[str, ...]:
        """Those of the statement itself."""
        return self.lines[self.first - self.begin : self.last - self.begin + 1]


def read_statement(told: object) -> Statement | None:
    """A statement as a run keeps it; None of anything else."""
    try:
        one = msgspec.convert(told, Statement)
    except msgspec.ValidationError:
        return None
    return one if one.begin <= one.first <= one.last < one.begin + len(one.lines) else None


@dataclass(frozen=True)
class Code:
    """A statement taken apart."""

    trees: tuple[ast.stmt, ...]
    source: str  # that they were made of
    shift: int  # lines of `source` before them
    has_torch: bool = False  # whether `torch` is a name there

    @property
    def tree(self) -> ast.stmt:
        """The statement."""
        return self.trees[0]

    def text(self, node: ast.AST) -> str:
        """What stands there."""
        return ast.get_source_segment(self.source, node) or ""

    def operand(self, node: ast.AST) -> str:
        """The same, so that a dot or a bracket can follow."""
        return self.text(node) if isinstance(node, _ALONE) else f"({self.text(node)})"

    def find_calls(self, *names: str) -> list[ast.Call]:
        """Calls of functions or methods by these names."""
        calls = [one for one in ast.walk(self.tree) if isinstance(one, ast.Call)]
        return [one for one in calls if name_called(one) in names]

    def replace(self, changes: Mapping[ast.AST, str]) -> list[str]:
        """The lines of the statement with other text in the place of some of its nodes."""
        lines = [line.encode() for line in self.source.split("\n")]
        for node, text in sorted(changes.items(), key=lambda pair: _begin_of(pair[0]), reverse=True):
            (begin, left), (end, right) = _begin_of(node), _end_of(node)
            joined = lines[begin - 1][:left] + text.encode() + lines[end - 1][right:]
            lines[begin - 1 : end] = joined.split(b"\n")
        return [line.decode() for line in lines[self.shift :]]

    def add_line(self, text: str) -> list[str]:
        """The lines of the statement, and one behind it."""
        lines = self.source.split("\n")[self.shift :]
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        return [*lines, indent + text]

    def add_keyword(self, call: ast.Call, text: str) -> list[str] | None:
        """The statement with one argument more; where it has none yet nobody knows what it is."""
        given = [*call.args, *call.keywords]
        last = max(given, key=_end_of, default=None)
        return None if last is None else self.replace({last: f"{self.text(last)}, {text}"})


Rewrite = Callable[[Code], list[str] | None]  # the statement's new lines; None where it is not as expected


def make_diff(statements: Iterable[Statement | None], rewrite: Rewrite) -> str | None:
    """A diff that changes each of them; None where there is none, or one that is not as expected."""
    asked = list(statements)
    changed: dict[Statement, list[str]] = {}
    for one in asked:
        code = None if one is None else _parse(one.own_lines, one.has_torch)
        new = rewrite(code) if code is not None and len(code.trees) == 1 else None
        if one is None or new is None or _parse(new) is None:
            return None
        changed[one] = new
    ordered = sorted(changed, key=lambda one: (one.path, one.first))
    if any(one.path == other.path and other.first <= one.last for one, other in pairwise(ordered)):
        return None  # one inside of the other
    told: list[str] = []
    for path in dict.fromkeys(one.path for one in changed):
        inside = {one.first: (one, new) for one, new in changed.items() if one.path == path}
        told += [f"--- a/{path}", f"+++ b/{path}", *_write_hunks(inside)]
    text = "".join(f"{line}\n" for line in told)
    return text if 0 < len(text) <= MOST_CHARACTERS else None


def _write_hunks(changed: Mapping[int, tuple[Statement, list[str]]]) -> Iterator[str]:
    """Of one file, by the first lines of statements; what lies near each other is one hunk."""
    lines = {at: line for one, _ in changed.values() for at, line in enumerate(one.lines, one.begin)}
    shift = 0  # how far lines have moved
    at = 0
    for begin in sorted(lines):
        if begin < at:
            continue  # of the hunk before
        at, hunk = begin, list[str]()
        while at in lines:
            one, new = changed.get(at, (None, []))
            old = [lines[at]] if one is None else one.own_lines
            hunk += [f" {lines[at]}"] if one is None else [*(f"-{x}" for x in old), *(f"+{x}" for x in new)]
            at += len(old)
        before, after = (sum(line[0] != sign for line in hunk) for sign in "+-")
        yield f"@@ -{begin},{before} +{begin + shift},{after} @@"
        yield from hunk
        shift += after - before


def name_called(call: ast.Call) -> str:
    """The last word of what is called."""
    return str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))


def is_given(call: ast.Call, *names: str) -> bool:
    """Whether it has one of these keywords, or may have it: of `**options` nobody knows."""
    return any(one.arg is None or one.arg in names for one in call.keywords)


def _parse(lines: Iterable[str], has_torch: bool = False) -> Code | None:
    """Lines of a file as one statement or several; None where they are none."""
    text = "\n".join(lines)
    indented = text[:1].isspace()
    source = f"if 1:\n{text}" if indented else text
    try:
        body: list[Any] = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    statements = tuple(body[0].body if indented and body else body)
    return Code(statements, source, int(indented), has_torch) if statements else None


def _begin_of(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end_of(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset
