"""Code of ours that runs inside of what a script has compiled: torch.compile runs it as it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def hide_from_compiler() -> None:
    """Have our functions run in Python where compiled code calls them; what they call may be compiled."""
    try:
        from torch._C._dynamo import eval_frame

        strategy = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        )
        for code in _codes():
            eval_frame.set_code_exec_strategy(code, strategy)
    except (ImportError, AttributeError, TypeError):  # another torch: its compiler looks at them itself
        return


def _codes() -> Iterator[CodeType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and isinstance(module, ModuleType):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    yield from _codes_of(value)


def _codes_of(value: Any) -> Iterator[CodeType]:
    if isinstance(value, (staticmethod, classmethod)):
        yield from _codes_of(value.__func__)
    elif isinstance(value, property):
        yield from _codes_of(value.fget)
    elif isinstance(value, FunctionType):
        yield from _nested(value.__code__)
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _codes_of(member)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
