"""The one door of module calls: `torch.nn.Module.__call__`, replaced once while something is recorded.

Nothing is put on modules, their classes or their parameters. Modules that are recorded are known by identity
in a table beside the model; all others, copies of a recorded one among them, run as always. Between recorded
steps the table is empty and the door stays: changing a class again and again throws away what Python has
learnt about it. While torch makes a program of a model (compiling, exporting, tracing) calls pass untouched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any, Protocol

import torch
import torch.fx  # keeps the plain call for its tracers when it is imported, so that has to come first
from torch import nn
from torch.compiler import is_compiling

from detscope.record.model.borders import BorderScribe, Calls, is_traced
from detscope.record.patches import Patches
from detscope.record.stand_ins import StandIns

# the way to ask has changed with torch's versions; without any, tracers keep the plain call all the same
_fx_traces: Callable[[], bool] = getattr(torch.fx._symbolic_trace, "_get_is_fx_tracing", lambda: False)


class Outside(Protocol):
    """Handles the call of a module that no recorded call encloses."""

    def __call__(
        self,
        plain: Callable[..., Any],
        recorded: Callable[..., Any],  # calls it and records what happens inside
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any: ...


_TRACERS = ("torch.jit.", "torch.onnx.")  # modules of torch's that begin to trace when they are called


def torch_captures(module: nn.Module | None = None) -> bool:
    """Whether torch makes a program of what runs now, or is about to by calling this module."""
    if module is not None and type(module).__module__.startswith(_TRACERS) and not _is_program(module):
        return True
    return is_compiling() or is_traced() is not None or _fx_traces()


def _is_program(module: nn.Module) -> bool:
    """A scripted or traced model runs like any other."""
    return isinstance(module, torch.jit.ScriptModule)


@dataclass
class OwnCalls:
    """Calls of a recorder that finds out by itself when they begin and end."""

    active: bool = False
    inside: int = 0
    in_backward: int = 0
    owner: int | None = None


class Door:
    """Stands in nn.Module; `numbers` says which modules are recorded now."""

    def __init__(
        self, scribe: BorderScribe, calls: Calls, around: Callable[[nn.Module], Callable[[], None] | None]
    ) -> None:
        self._scribe = scribe
        self._calls = calls
        self._around = around  # told of an outermost call; what it gives back is called at the end
        self._patches = Patches()
        self._alone = Lock()
        self._call: Callable[..., Any] = nn.Module.__call__
        self._plain: Callable[..., Any] = nn.Module.__call__
        self.stand_ins = StandIns(calls)
        self.numbers: dict[int, int] = {}  # by id; negative: not in one piece, see `BorderScribe.targets`
        self.installed = False

    def install(self, outside: Outside | None = None, replaces: Callable[..., Any] | None = None) -> None:
        """Replace `nn.Module.__call__`; `outside` handles calls that come while none is under way."""
        if self.installed:
            return
        current = vars(nn.Module)["__call__"]
        # a script's first door knew no model yet: this one does its work too
        plain = self._plain = vars(current)["__wrapped__"] if current is replaces else current
        recorded = self._scribe.call(plain, self.numbers, self._calls, self._outermost(outside))
        self._call = functools.wraps(plain)(recorded)
        self._patches.put(nn.Module, "__call__", self._call)
        self.installed = True

    def remove(self) -> None:
        """Put everything back for good."""
        self.numbers.clear()
        self._patches.undo()
        self.stand_ins.remove()
        self.installed = False

    def _outermost(self, outside: Outside | None) -> Callable[..., Any]:
        if outside is None:
            return self._enter
        plain = self._plain

        def told(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if torch_captures(module):
                return plain(module, *args, **kwargs)
            return outside(plain, self._inside, module, args, kwargs)

        return told

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module is called while no recorded call is under way."""
        if id(module) not in self.numbers or torch_captures() or not self._alone.acquire(blocking=False):
            return self._plain(module, *args, **kwargs)
        calls = self._calls
        calls.owner, calls.inside = get_ident(), 1
        end = self._around(module)
        try:
            return self._inside(module, *args, **kwargs)
        finally:
            if end is not None:
                end()
            calls.inside = 0
            self._alone.release()

    def _inside(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The outermost call that is recorded."""
        stand_ins = self.stand_ins
        stand_ins.put_in()
        try:
            return self._call(module, *args, **kwargs)
        finally:
            stand_ins.take_out()
