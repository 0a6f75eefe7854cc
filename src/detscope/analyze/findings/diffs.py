"""A change of the code as a unified diff, where a statement is exactly what a rule expects.

Statements were kept when the run was recorded: no file of the user's is opened here, and none is written.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    known = sorted({one for one in asked if one is not None}, key=lambda one: (one.path, one.first))
    if not known or None in asked:
        return None
    told: list[str] = []
    path, used, shift = "", 0, 0  # the last line that a hunk has; how far lines have moved
    for index, one in enumerate(known):
        old = one.lines[one.first - one.begin : one.last - one.begin + 1]
        code = _parse(old, one.has_torch)
        new = rewrite(code) if code is not None and len(code.trees) == 1 else None
        if new is None or _parse(new) is None or one.first <= used * (one.path == path):
            return None
        if one.path != path:
            path, used, shift = one.path, 0, 0
            told += [f"--- a/{path}", f"+++ b/{path}"]
        following = known[index + 1] if index + 1 < len(known) else None
        stop = following.first - 1 if following is not None and following.path == path else one.last + 3
        begin = max(one.begin, used + 1)
        before = one.lines[begin - one.begin : one.first - one.begin]
        behind = one.lines[one.last - one.begin + 1 : stop - one.begin + 1]
        used = one.last + len(behind)
        around = len(before) + len(behind)
        told.append(f"@@ -{begin},{around + len(old)} +{begin + shift},{around + len(new)} @@")
        told += [f" {line}" for line in before]
        told += [f"-{line}" for line in old] + [f"+{line}" for line in new]
        told += [f" {line}" for line in behind]
        shift += len(new) - len(old)
    text = "\n".join(told) + "\n"
    return text if len(text) <= MOST_CHARACTERS else None


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
