"""What stands at a line of code: its text, and the statement that it is a part of."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import NamedTuple

CHECK, LOOP, COMPREHENSION = "check", "loop", "comprehension"
_LONGEST = 160  # characters of a line that are kept
_LARGEST = 2_000_000  # of a file that is taken apart
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class SourceLine(NamedTuple):
    """A line of a file."""

    text: str  # "" where there is no source
    around: str  # check (assert, or an if that raises), comprehension, loop, or ""


def read_line(file: str, line: int) -> SourceLine:
    """The line, as far as its file can be read; the innermost statement around it counts."""
    text = linecache.getline(file, line).strip()
    return SourceLine(text[:_LONGEST], _statements_of(file).get(line, "") if text else "")


@lru_cache(maxsize=256)
def _statements_of(file: str) -> dict[int, str]:
    source = "".join(linecache.getlines(file))
    if len(source) > _LARGEST:
        return {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, str] = {}
    for node in ast.walk(tree):  # outer nodes first: what is inside of them overwrites
        lines: range | None = None
        kind = ""
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _raises(node.body)):
            test = node.test
            lines, kind = range(node.lineno, (test.end_lineno or test.lineno) + 1), CHECK
        elif isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            lines, kind = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1), LOOP
        elif isinstance(node, _COMPREHENSIONS):
            lines, kind = range(node.lineno, (node.end_lineno or node.lineno) + 1), COMPREHENSION
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for line in lines or ():
            found[line] = kind
    return found


def _raises(body: list[ast.stmt]) -> bool:
    return any(isinstance(one, ast.Raise) for one in body)
