"""Torch's stacks of modes: ours is put on top, and taken out wherever it lies by then."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def push_modes(functions: TorchFunctionMode, operators: TorchDispatchMode) -> None:
    """Enter both."""
    functions.__enter__()
    operators.__enter__()


def remove_modes(functions: TorchFunctionMode, operators: TorchDispatchMode) -> None:
    """Leave both; modes that a script entered meanwhile and has not left stay in their order."""
    _remove_mode(
        operators, torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_stack_at, _leave, _enter
    )
    _remove_mode(
        functions,
        torch._C._len_torch_function_stack,
        torch._C._get_function_stack_at,
        lambda _mode: torch._C._pop_torch_function_stack(),
        torch._C._push_on_torch_function_stack,
    )


def _leave(mode: Any) -> None:
    mode.__exit__(None, None, None)


def _enter(mode: Any) -> None:
    mode.__enter__()


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
