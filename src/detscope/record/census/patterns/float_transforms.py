"""Where a script writes down that images become floats: a loader's work is no operator of the step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from detscope.record.census.pattern import CensusPattern
from detscope.record.census.written_calls import find_calls, read_sources, tell_place

_TO_FLOAT = ("ToTensor", "ToDtype", "ConvertImageDtype", "ConvertDtype", "ToFloat")
# the same as functions and methods; those of the second line with a type of floats among their arguments
_MAKE_FLOAT = ("to_tensor", "float", "true_divide")
_CONVERT = (
    "convert_image_dtype",
    "to_dtype",
    "to_dtype_image",
    "to",
    "type",
    "astype",
    "asarray",
    "as_tensor",
)
_BACK = ("to_pil_image", "byte", "uint8", "long", "item")
_GEOMETRIC = (
    "resize", "resized_crop", "crop", "center_crop", "pad", "hflip", "vflip", "horizontal_flip",
    "vertical_flip", "flip", "fliplr", "flipud", "rotate", "affine", "perspective", "elastic", "interpolate",
    "warpAffine", "warpPerspective", "copyMakeBorder", "letterbox",
)  # fmt: skip
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def tell_facts() -> dict[str, Any]:
    """Calls in the script's own files, and its functions that do to floats what could be done to bytes."""
    return {
        "calls": find_calls(_TO_FLOAT, own_only=True)[:20],
        "functions": read_sources(_read_functions, _GEOMETRIC, own_only=True)[:20],
    }


def _read_functions(tree: ast.Module, file: str, _words: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for name, function in _list_functions(tree, ""):
        images = _Images()
        for statement in _in_order(function.body):
            images.read_statement(statement)
        if images.made and images.moved:
            place = tell_place(name, file, images.made[1])
            yield {"called": images.made[0], "moved": list(dict.fromkeys(images.moved)), **place}


def _list_functions(within: ast.AST, before: str) -> Iterator[tuple[str, Any]]:
    """Functions with their qualified names."""
    for node in ast.iter_child_nodes(within):
        if isinstance(node, _Function):
            yield before + node.name, node
            yield from _list_functions(node, f"{before}{node.name}.<locals>.")
        else:
            yield from _list_functions(
                node, f"{before}{node.name}." if isinstance(node, ast.ClassDef) else before
            )


def _in_order(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements and those inside of them as they are written; functions in them have their own turn."""
    for one in statements:
        if isinstance(one, (*_Function, ast.ClassDef)):
            continue
        yield one
        for inner in ("body", "orelse", "finalbody"):
            yield from _in_order(getattr(one, inner, None) or [])


class _Images:
    """Names that stand for floats in a function, as far as it has been read."""

    def __init__(self) -> None:
        self.made: tuple[str, int] | None = None  # what made the first that is moved, and its line
        self.moved: list[str] = []
        self._floats: dict[str, tuple[str, int]] = {}

    def read_statement(self, statement: ast.stmt) -> None:
        """Learn from an assignment or a returned value."""
        value = getattr(statement, "value", None)
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)) or not isinstance(
            value, ast.expr
        ):
            return
        made = self._find_floats(value)
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        for name in (one.id for one in targets if isinstance(one, ast.Name)):
            self._floats.pop(name, None)
            if made is not None:
                self._floats[name] = made

    def _find_floats(self, value: ast.expr) -> tuple[str, int] | None:
        """What made the floats that an expression gives; None: it gives none that are known."""
        if isinstance(value, ast.Name):
            return self._floats.get(value.id)
        if isinstance(value, ast.IfExp):
            return self._find_floats(value.body) or self._find_floats(value.orelse)
        if isinstance(value, ast.BinOp):
            if (
                isinstance(value.op, ast.Div)
                and isinstance(value.right, ast.Constant)
                and value.right.value == 255
            ):
                return self._find_floats(value.left) or ("/ 255", value.lineno)
            return self._find_floats(value.left)
        if isinstance(value, ast.Subscript):
            return self._find_floats(value.value)
        return self._find_called(value) if isinstance(value, ast.Call) else None

    def _find_called(self, call: ast.Call) -> tuple[str, int] | None:
        method = isinstance(call.func, ast.Attribute)
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        before = next(filter(None, map(self._find_floats, given)), None)
        words = [ast.unparse(one) for one in (*call.args, *(one.value for one in call.keywords))]
        if called in _BACK or (called in _CONVERT and any("uint8" in word for word in words)):
            return None
        if called in _GEOMETRIC and before is not None:
            self.made = self.made or before
            self.moved.append(called)
            return before
        makes = called in _MAKE_FLOAT and (method or called == "to_tensor")
        if before is None and (makes or (called in _CONVERT and any("float" in word for word in words))):
            return called, call.lineno
        return before


PART = CensusPattern("float_transforms", lambda: lambda _operator: None, facts=tell_facts)
