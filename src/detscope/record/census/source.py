"""What stands at a line of code: its text, and the statement that it is a part of."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeGuard

CHECK, LOOP, COMPREHENSION = "check", "loop", "comprehension"
_LONGEST = 160  # characters of a line that are kept
_LARGEST = 2_000_000  # of a file that is taken apart
_ENDS = ("exit", "quit", "abort")  # of the process: as good as raising
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class SourceLine(NamedTuple):
    """A line of a file."""

    text: str  # "" where there is no source
    around: str  # check (an assertion, or an if that raises), comprehension, loop, or ""


def read_line(file: str, line: int) -> SourceLine:
    """The line, as far as its file can be read; the innermost statement around it counts."""
    text = linecache.getline(file, line).strip()
    return SourceLine(text[:_LONGEST], _statements_of(file).get(line, "") if text else "")


@lru_cache(maxsize=64)
def parse_file(file: str) -> ast.Module | None:
    """A file of Python taken apart, as far as it can be."""
    source = "".join(linecache.getlines(file))
    if not source or len(source) > _LARGEST:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=256)
def _statements_of(file: str) -> dict[int, str]:
    tree = parse_file(file)
    if tree is None:
        return {}
    found: dict[int, str] = {}
    for node in ast.walk(tree):  # outer nodes first: what is inside of them overwrites
        lines: range | None = None
        kind = ""
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and any(map(_refuses, node.body))):
            test = node.test
            lines, kind = range(node.lineno, (test.end_lineno or test.lineno) + 1), CHECK
        elif _asserts(node):
            lines, kind = range(node.lineno, (node.end_lineno or node.lineno) + 1), CHECK
        elif isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            lines, kind = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1), LOOP
        elif isinstance(node, _COMPREHENSIONS):
            lines, kind = range(node.lineno, (node.end_lineno or node.lineno) + 1), COMPREHENSION
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for line in lines or ():
            if not (kind == COMPREHENSION and found.get(line) == CHECK):  # a check of many is a check
                found[line] = kind
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found |= dict.fromkeys(_lines_for_checks(node), CHECK)
    return found


def _lines_for_checks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Lines that compute a name for checks alone: `sizes = int(x.sum())`, then `assert sizes == length`."""
    nodes = list(ast.walk(function))
    checks = [one for one in nodes if _is_check(one)]
    checking = {inner for one in checks for inner in ast.walk(one)}
    names = [one for one in nodes if isinstance(one, ast.Name)]
    read = [one for one in names if isinstance(one.ctx, ast.Load)]
    for node in nodes if checks else ():
        if not isinstance(node, ast.Assign):
            continue
        bound = {one.id for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)}
        uses = [one for one in read if one.id in bound]
        if uses and checking.issuperset(uses):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_check(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) or _asserts(node) or _only_refuses(node)


def _only_refuses(node: ast.AST) -> bool:
    """Whether it is an if that does nothing but raise, whatever it calls (prints) before."""
    if not isinstance(node, ast.If) or node.orelse or not _refuses(node.body[-1]):
        return False
    return all(_refuses(one) or isinstance(one, ast.Expr) for one in node.body)


def _refuses(statement: ast.AST) -> bool:
    ends = _name_called(statement).lstrip("_") in _ENDS
    return isinstance(statement, (ast.Raise, ast.Assert)) or ends or _asserts(statement)


def _asserts(statement: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether it is a call alone of a function such as `torch._assert` or `torch._check_tensor_all`."""
    return _name_called(statement).lstrip("_").startswith(("assert", "check"))


def _name_called(statement: ast.AST) -> str:
    """What a statement calls that is a call alone."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return ""
    called = statement.value.func
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
