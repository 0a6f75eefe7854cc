"""What is written in sources that are loaded, as calls of a function: they are read, nothing is patched."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from detscope.record.census.statements import read_statement
from detscope.record.code_lines import PACKAGES, CodeLine

_MOST_FILES, _LARGEST = 6000, 2_000_000  # files that are read, and bytes of one
_LEFT_OUT = ("torch", "torchvision", "detscope", "numpy", "polars", "sympy", "scipy")
_NOT_OWN = {*sys.stdlib_module_names, "detscope"}

Reader = Callable[[ast.Module, str, tuple[str, ...]], Iterable[dict[str, Any]]]  # tree, file, words


def find_calls(names: Collection[str], own_only: bool = False) -> list[dict[str, Any]]:
    """Calls by these names, the script's own first: what is called, where, and with which first argument."""
    return read_sources(_calls_in, tuple(names), own_only)


def read_sources(reader: Reader, words: tuple[str, ...], own_only: bool = False) -> list[dict[str, Any]]:
    """What a reader tells of every source that has one of the words, the script's own first."""
    found: list[dict[str, Any]] = []
    for file in _list_sources(own_only):
        try:
            told = Path(file).stat()
            found += map(dict, _read_source(file, told.st_mtime_ns, told.st_size, words, reader))
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
    return found


def _list_sources(own_only: bool) -> list[str]:
    """Files of modules that are loaded; Python's own and those of libraries that call nothing of ours."""
    own, packaged = [], []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        if PACKAGES in file:
            if name.partition(".")[0] not in _LEFT_OUT:
                packaged.append(file)
        elif name.partition(".")[0] not in _NOT_OWN or name == "__main__":
            own.append(file)
    own.sort(key=lambda file: file != getattr(sys.modules.get("__main__"), "__file__", ""))
    return (own if own_only else [*own, *packaged])[:_MOST_FILES]


@lru_cache(maxsize=2 * _MOST_FILES)
def _read_source(
    file: str, _modified: int, size: int, words: tuple[str, ...], reader: Reader
) -> list[dict[str, Any]]:
    """What there is in one file, read once for all steps and runs of a process until it is changed."""
    source = Path(file).read_text(encoding="utf-8") if size <= _LARGEST else ""
    return list(reader(ast.parse(source), file, words)) if any(word in source for word in words) else []


def _calls_in(tree: ast.Module, file: str, names: Collection[str]) -> Iterator[dict[str, Any]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    imports = [one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names]
    renamed = {one.asname: one.name for one in imports if one.asname is not None}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        written = str(getattr(node.func, "id", ""))
        called = getattr(node.func, "attr", None) or renamed.get(written, written)
        if called not in names:
            continue
        around = [one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0)]
        first = node.args[0] if node.args else next((one.value for one in node.keywords[:1]), None)
        yield {
            "called": called,
            **tell_place(around[-1].name if around else "<module>", file, node.lineno),
            "with": ast.unparse(first)[:80] if first is not None else "",
            "statement": read_statement(file, node.lineno),
        }


def tell_place(function: str, file: str, line: int) -> dict[str, Any]:
    """A line by its function, its file as it is told, and its code."""
    _, packages, below = file.rpartition(PACKAGES)
    place = CodeLine(function, below if packages else Path(file).name, line)
    return {**place._asdict(), "code": linecache.getline(file, line).strip()[:160]}
