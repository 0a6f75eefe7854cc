"""Functions of ours that stand between a script and what it calls: warnings and compilers pass over them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_FOLDER = str(Path(__file__).parents[1])
_BETWEEN = (f"{_PACKAGE}.record.", f"{_PACKAGE}.sessions.run.")  # where what stands between comes from
# Python's warnings pass over frames of its own importing, which they know by both words in a file's name
_LIKE_IMPORTING = " (importlib _bootstrap)"
_renamed: set[str] = set()  # modules


def pass_over_in_warnings() -> None:
    """Let a warning that names one of its callers (`stacklevel`) name the one that it names without us.

    Before stand-ins are made of our functions: one that was made keeps its code. `warnings.warn` itself stays
    in its place: torch.jit knows it by identity.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_BETWEEN) and name not in _renamed and isinstance(module, ModuleType):
            _renamed.add(name)
            for function in _find_functions(module):
                function.__code__ = _rename(function.__code__)


def hide_from_compiler() -> None:
    """Have our functions run in Python where compiled code calls them; what they call may be compiled."""
    try:
        from torch._C._dynamo import eval_frame

        strategy = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        )
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == _PACKAGE and isinstance(module, ModuleType):
                for function in _find_functions(module):
                    for code in _find_codes(function.__code__):
                        eval_frame.set_code_exec_strategy(code, strategy)
    except (ImportError, AttributeError, TypeError):  # another torch: its compiler looks at them itself
        return


def _find_functions(module: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that a module of ours defines; what its classes hold of others is left alone."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) == module.__name__:
            for function in _functions_of(value):
                if function.__code__.co_filename.startswith(_FOLDER):
                    yield function


def _functions_of(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _functions_of(member)
    elif isinstance(value, staticmethod | classmethod):
        yield from _functions_of(value.__func__)
    elif isinstance(value, property):
        yield from _functions_of(value.fget)
    elif isinstance(value, cached_property):
        yield from _functions_of(value.func)
    elif hasattr(value, "__wrapped__"):  # by `cache`, by `contextmanager`
        yield from _functions_of(value.__wrapped__)
    elif isinstance(value, FunctionType):
        yield value


def _find_codes(code: CodeType) -> Iterator[CodeType]:
    """Code with what is nested inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _find_codes(constant)


def _rename(code: CodeType) -> CodeType:
    constants = tuple(_rename(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=code.co_filename + _LIKE_IMPORTING, co_consts=constants)
