"""What a call in the code says of itself: whether it names the host, and whether what it gives is kept.

On a CPU a copy to the host is the tensor itself, so which of the two a name means is read from the code:
`x = x.cpu()` and `rows.append(x.view(-1).cpu())` keep the copy, `f(x.cpu())` passes it on and x stays.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

from detscope.record.census.source import parse_file

_HELD = (ast.Name, ast.Attribute, ast.Subscript)  # what is copied has a name of its own
_KEEPING = (ast.Assign, ast.AnnAssign, ast.Return, ast.NamedExpr, ast.Yield)
_COLLECTING = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.IfExp, ast.BoolOp)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class CallLook(NamedTuple):
    """A call as it is written."""

    kept: bool = True  # what it gives is bound, or nobody else has it
    says_host: bool = False  # `.to("cpu")`: a device that a variable names is the device
    lines: tuple[int, int] = (0, 0)  # of the statement, without what it encloses
    device_of: str = ""  # `device=boxes.device`: the name of what lies there
    of_constants: bool = False  # what it is given first is written down in the code: `tensor([0.5, 1])`
    says_later: bool = False  # `non_blocking=` is given: a variable may be False on a CPU alone


class Loan(NamedTuple):
    """A copy that is passed on: the tensor stands for it while the statement runs, and for itself after."""

    frame: int  # by id: it is not held
    code: CodeType
    instruction: int
    lines: tuple[int, int]

    def lasts(self, frame: FrameType | None) -> bool:
        """Whether the statement is under way around this frame."""
        while frame is not None:
            if id(frame) == self.frame and frame.f_code is self.code:
                return self.lines[0] <= frame.f_lineno <= self.lines[1]
            frame = frame.f_back
        return False

    def is_call(self, frame: FrameType) -> bool:
        """Whether it is this very call that lent it: it is made again, of the tensor."""
        return id(frame) == self.frame and frame.f_lasti == self.instruction


@lru_cache(maxsize=4096)
def look_at_call(code: CodeType, instruction: int) -> CallLook:
    """The call that a frame is at; nothing is known of code without a source."""
    found = _find_call(code, instruction)
    if found is None:
        return CallLook()
    call, parents = found
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    kept, statement = _follow_up(call, parents)
    first = getattr(statement, "lineno", call.lineno)
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
    return CallLook(
        kept or not isinstance(receiver, _HELD),
        _says_host(call),
        (first, max(first, last or first)),
        _name_device_of(call, parents),
        bool(call.args) and _is_constant(call.args[0]),
        _says_later(call),
    )


def _find_call(code: CodeType, instruction: int) -> tuple[ast.Call, dict[ast.AST, ast.AST]] | None:
    if instruction < 0:
        return None
    _, last_line, _, last_column = list(code.co_positions())[instruction // 2]
    calls, parents = _calls_of(code.co_filename)
    call = calls.get((last_line, last_column))
    return None if call is None else (call, parents)


@lru_cache(maxsize=64)
def _calls_of(
    file: str,
) -> tuple[dict[tuple[int | None, int | None], ast.Call], dict[ast.AST, ast.AST]]:
    """Calls of a file by where they end: of a chain over lines the beginnings are not told alike."""
    tree = parse_file(file)
    parents = (
        {} if tree is None else {inner: one for one in ast.walk(tree) for inner in ast.iter_child_nodes(one)}
    )
    calls = {(one.end_lineno, one.end_col_offset): one for one in parents if isinstance(one, ast.Call)}
    return calls, parents


def _follow_up(call: ast.Call, parents: dict[ast.AST, ast.AST]) -> tuple[bool, ast.stmt]:
    """Whether the result is bound or collected, and the statement that the call is in."""
    node: ast.AST = call
    kept: bool | None = None
    while not isinstance(node, ast.stmt):
        node = parents[node]
        if kept is None and isinstance(node, (*_KEEPING, *_COMPREHENSIONS)):
            kept = True
        elif kept is None and not isinstance(node, _COLLECTING):
            kept = False
    return bool(kept), node


def _name_device_of(call: ast.Call, parents: dict[ast.AST, ast.AST]) -> str:
    """Whose device is given: `x.device` itself, or a name that the function binds to that alone."""
    for given in (*call.args, *(one.value for one in call.keywords)):
        bound = _find_bound(given.id, call, parents) if isinstance(given, ast.Name) else [given]
        if len(bound) == 1 and isinstance(bound[0], ast.Attribute) and bound[0].attr == "device":
            return bound[0].value.id if isinstance(bound[0].value, ast.Name) else ""
    return ""


def _find_bound(name: str, call: ast.Call, parents: dict[ast.AST, ast.AST]) -> list[ast.expr]:
    """All that the function around a call binds to a name, as far as it is written plainly."""
    node: ast.AST = call
    while node in parents and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        node = parents[node]
    bindings = [one for one in ast.walk(node) if isinstance(one, ast.Assign)]
    return [
        one.value
        for one in bindings
        if any(isinstance(target, ast.Name) and target.id == name for target in one.targets)
    ]


def _is_constant(given: ast.expr) -> bool:
    parts = (ast.Constant, ast.List, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Load)
    return all(isinstance(one, parts) for one in ast.walk(given))


def _says_later(call: ast.Call) -> bool:
    given = [one.value for one in call.keywords if one.arg == "non_blocking"]
    return any(not (isinstance(one, ast.Constant) and one.value is False) for one in given)


def _says_host(call: ast.Call) -> bool:
    """Whether an argument is the word itself, or `torch.device` of it; not where it is one of two."""
    given = [*call.args, *(one.value for one in call.keywords)]
    given += [inner for one in given if isinstance(one, ast.Call) for inner in one.args]
    return any(isinstance(one, ast.Constant) and one.value == "cpu" for one in given)
