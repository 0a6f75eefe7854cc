"""Statements as they stand in the code, kept with the run: a diff of them can be written anywhere."""

from __future__ import annotations

import ast
import linecache
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from detscope.record.census.source import parse_file
from detscope.record.code_lines import PACKAGES

_CONTEXT = 3  # lines of a diff before and behind
_MOST_LINES = 12  # of a statement
_LONGEST = 400  # characters of one of its lines


@lru_cache(maxsize=512)
def read_statement(file: str, line: int) -> dict[str, Any] | None:
    """The innermost statement at a line, with the lines around it; None of one that encloses others.

    Of those an `if` alone is told whole, as far as it is short: it may be a check.
    """
    tree, path = parse_file(file), _name_in_patch(file)
    statement = None if tree is None or path is None else _find_statement(tree, line)
    if tree is None or statement is None:
        return None
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    lines = [one.rstrip("\r\n") for one in linecache.getlines(file)]
    begin, end = max(1, first - _CONTEXT), min(len(lines), last + _CONTEXT)
    shown = lines[begin - 1 : end]
    if last - first >= _MOST_LINES or any(len(one) > _LONGEST for one in shown):
        return None
    imports = [name for one in tree.body if isinstance(one, ast.Import) for name in one.names]
    has_torch = any(one.name.partition(".")[0] == "torch" and one.asname is None for one in imports)
    place = {"path": path, "begin": begin, "first": first, "last": last}
    return {**place, "lines": shown, "has_torch": has_torch}


def _find_statement(tree: ast.Module, line: int) -> ast.stmt | None:
    around = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or one.lineno)
    ]
    innermost = around[-1] if around else None  # outer ones come first
    encloses = hasattr(innermost, "body") or isinstance(innermost, ast.Match)
    return None if encloses and not isinstance(innermost, ast.If) else innermost


def _name_in_patch(file: str) -> str | None:
    """As `detscope try` finds it: from the packages, the folder of the command, or that of the script."""
    _, packages, below = file.rpartition(PACKAGES)
    if packages:
        return below
    for folder in (str(Path.cwd()), *sys.path[:1]):
        if folder and Path(file).is_relative_to(folder):
            return Path(file).relative_to(folder).as_posix()
    return None
