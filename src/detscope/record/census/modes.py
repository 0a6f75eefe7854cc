"""Torch's stacks of modes: where ours is put in, and taken out wherever it lies by then.

Whether operators come to Python at all stands in the thread's dispatch keys, beside the stack.
`inference_mode` puts these keys back when it is left, as they were when it was entered: with a mode of ours
taken out in between they say that there is one, and every call of torch fails; with one put in, that there
is none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_leave_inference = torch.inference_mode.__exit__


def push_modes(functions: TorchFunctionMode, operators: TorchDispatchMode, below: bool) -> None:
    """Enter both; below those that are entered: whoever leaves one of them takes the topmost off."""
    torch.inference_mode.__exit__ = _leave_and_settle  # type: ignore[method-assign]
    if not below:
        functions.__enter__()
        operators.__enter__()
        return
    _insert_mode(operators, *_OPERATORS)
    _insert_mode(functions, *_FUNCTIONS)


def remove_modes(functions: TorchFunctionMode, operators: TorchDispatchMode) -> None:
    """Leave both; modes that a script entered meanwhile and has not left stay in their order."""
    # blocks of inference_mode that were entered meanwhile hold ours until they are left
    torch.inference_mode.__exit__ = _leave_inference  # type: ignore[method-assign]
    _remove_mode(operators, *_OPERATORS)
    _remove_mode(functions, *_FUNCTIONS)


def hear_again() -> None:
    """Operators come to Python if there is a mode that hears them, whatever the keys say by now."""
    stack = [torch._C._get_dispatch_stack_at(place) for place in range(torch._C._len_torch_dispatch_stack())]
    if torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python) != bool(stack):
        # the key is written when the stack begins and when it ends
        for mode in reversed(stack):
            _leave(mode)
        with TorchDispatchMode():
            pass
        for mode in stack:
            _enter(mode)


def _leave_and_settle(guard: Any, *error: Any) -> Any:
    result = _leave_inference(guard, *error)
    hear_again()
    return result


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
