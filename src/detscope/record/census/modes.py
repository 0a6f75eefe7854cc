"""Torch's stacks of modes: where ours is put in, and taken out wherever it lies by then."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def push_modes(functions: TorchFunctionMode, operators: TorchDispatchMode, below: bool) -> None:
    """Enter both; below those that are entered: whoever leaves one of them takes the topmost off."""
    if not below:
        functions.__enter__()
        operators.__enter__()
        return
    _insert_mode(operators, *_OPERATORS)
    _insert_mode(functions, *_FUNCTIONS)


def remove_modes(functions: TorchFunctionMode, operators: TorchDispatchMode) -> None:
    """Leave both; modes that a script entered meanwhile and has not left stay in their order."""
    _remove_mode(operators, *_OPERATORS)
    _remove_mode(functions, *_FUNCTIONS)


def _leave(mode: Any) -> None:
    mode.__exit__(None, None, None)


def _enter(mode: Any) -> None:
    mode.__enter__()


_OPERATORS = (torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_stack_at, _leave, _enter)
_FUNCTIONS = (
    torch._C._len_torch_function_stack,
    torch._C._get_function_stack_at,
    lambda _mode: torch._C._pop_torch_function_stack(),
    torch._C._push_on_torch_function_stack,
)


def _insert_mode(mode: Any, length: Any, look_at: Any, pop: Any, push: Any) -> None:
    above = [look_at(place) for place in range(length())]
    for other in reversed(above):
        pop(other)
    for other in (mode, *above):
        push(other)


def _remove_mode(mode: Any, length: Any, look_at: Any, pop: Any, push: Any) -> None:
    stack = [look_at(place) for place in range(length())]
    if mode not in stack:
        return
    above = stack[stack.index(mode) + 1 :]
    for other in reversed(above):
        pop(other)
    pop(mode)
    for other in above:
        push(other)
