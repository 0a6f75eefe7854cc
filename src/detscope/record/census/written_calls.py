"""Where a function is called in the sources that are loaded: found by reading them, nothing is patched."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from detscope.record.census.statements import read_statement
from detscope.record.code_lines import PACKAGES, CodeLine

_MOST_FILES, _LARGEST = 6000, 2_000_000  # files that are read, and bytes of one
_LEFT_OUT = ("torch", "torchvision", "detscope", "numpy", "polars", "sympy", "scipy")


def find_calls(names: Collection[str], own_only: bool = False) -> list[dict[str, Any]]:
    """Calls by these names, the script's own first: what is called, where, and with which first argument."""
    found: list[dict[str, Any]] = []
    for path in _list_sources(own_only):
        try:
            if path.stat().st_size > _LARGEST:
                continue
            source = path.read_text(encoding="utf-8")
            if any(name in source for name in names):
                found += _calls_in(ast.parse(source), path, names)
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
    return found


def _list_sources(own_only: bool) -> list[Path]:
    """Files of modules that are loaded; Python's own and those of libraries that call nothing of ours."""
    own, packaged = [], []
    for name, module in list(sys.modules.items())[:_MOST_FILES]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        if PACKAGES in file:
            if name.partition(".")[0] not in _LEFT_OUT:
                packaged.append(Path(file))
        elif name.partition(".")[0] not in (*sys.stdlib_module_names, "detscope") or name == "__main__":
            own.append(Path(file))
    own.sort(key=lambda path: str(path) != getattr(sys.modules.get("__main__"), "__file__", ""))
    return own if own_only else [*own, *packaged]


def _calls_in(tree: ast.Module, path: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
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
        _, packages, below = str(path).rpartition(PACKAGES)
        place = CodeLine(
            around[-1].name if around else "<module>", below if packages else path.name, node.lineno
        )
        first = node.args[0] if node.args else next((one.value for one in node.keywords[:1]), None)
        yield {
            "called": called,
            **place._asdict(),
            "code": linecache.getline(str(path), node.lineno).strip()[:160],
            "with": ast.unparse(first)[:80] if first is not None else "",
            "statement": read_statement(str(path), node.lineno),
        }
