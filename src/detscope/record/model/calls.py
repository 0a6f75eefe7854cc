"""The one door of module calls: `torch.nn.Module.__call__`, replaced once while something is recorded.

Nothing is put on modules, their classes or their parameters. Modules that are recorded are known by identity
in a table beside the model; all others, copies of a recorded one among them, run as always. Between recorded
steps the table is empty and the door stays: changing a class again and again throws away what Python has
learnt about it. While torch makes a program of a model (compiling, exporting, tracing) calls pass untouched.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
import torch.fx  # keeps the plain call for its tracers when it is imported, so that has to come first
from torch import nn
from torch.compiler import is_compiling, is_dynamo_compiling

from detscope.record.foreign import Patches
from detscope.record.model.borders import BorderScribe, Calls, Pair, is_traced


@dataclass(frozen=True)
class CallTarget:
    """What is done around a call: borders are written, if there is a pair, and counts are read."""

    pair: Pair | None
    reads: tuple[Callable[[Any], None], ...]

    def call(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it."""
        if self.pair is None:
            output = plain(*args, **kwargs)
        else:
            before, after = self.pair
            before(None, (args, kwargs))
            output = None
            try:
                output = plain(*args, **kwargs)
            finally:
                after(None, args, output)
        for read in self.reads:
            read(output)
        return output


class MethodStandIn:
    """On a class, in the place of a method."""

    def __init__(self, plain: Any, calls: Calls) -> None:
        self._plain = plain
        self._calls = calls
        self.targets: dict[int, CallTarget] = {}  # by the object's id
        targets = self.targets

        def method(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            bound = plain.__get__(self_, type(self_))
            target = targets.get(id(self_))
            return bound(*args, **kwargs) if target is None else target.call(bound, args, kwargs)

        self._method = functools.wraps(plain, updated=())(method)
        functools.update_wrapper(self, plain, updated=())  # type: ignore[arg-type]

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if is_dynamo_compiling() or owner is None or id(owner) not in self.targets:
            return self._plain.__get__(owner, kind)
        if not _recorded_here(self._calls):
            return self._plain.__get__(owner, kind)
        if isinstance(self._plain, (FunctionType, MethodStandIn)):
            return MethodType(self._method, owner)
        plain, target = self._plain.__get__(owner, kind), self.targets[id(owner)]
        return _around(plain, target, self._calls)  # a static method or the like


class _Replaced:
    """A function in a library's or an instance's own names, while a recorded call is under way."""

    def __init__(self, owner: Any, name: str, calls: Calls) -> None:
        self._owner = weakref.ref(owner)
        self._name = name
        self._calls = calls
        self._plain: Any = None
        self._stand_in: Any = None
        self.target: CallTarget | None = None
        self._made_for: CallTarget | None = None

    def put_in(self) -> None:
        owner, target = self._owner(), self.target
        plain = None if owner is None else vars(owner).get(self._name)
        if plain is None or target is None:
            return
        if plain is not self._plain or target is not self._made_for:  # else made before
            self._plain, self._made_for = plain, target
            self._stand_in = _around(plain, target, self._calls)
        vars(owner)[self._name] = self._stand_in

    def take_out(self) -> None:
        owner = self._owner()
        if owner is not None and vars(owner).get(self._name) is self._stand_in is not None:
            vars(owner)[self._name] = self._plain


class StandIns:
    """All stand-ins of one recording; which of them do something follows from `show`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._patches = Patches()
        self._methods: dict[tuple[type, str], MethodStandIn] = {}
        self._replaced: dict[tuple[int, str], _Replaced] = {}
        self._open = 0

    def show(self, owner: Any, name: str, target: CallTarget) -> None:
        """From now on do this around calls of a method (or of a function, of its library module)."""
        kind = None if name in vars(owner) else _class_with(owner, name)
        if kind is None:
            replaced = self._replaced.setdefault((id(owner), name), _Replaced(owner, name, self._calls))
            replaced.target = target
            return
        stand_in = self._methods.get((kind, name))
        if stand_in is None:
            stand_in = self._methods[kind, name] = MethodStandIn(vars(kind)[name], self._calls)
            self._patches.put(kind, name, stand_in)
        stand_in.targets[id(owner)] = target

    def hide(self) -> None:
        """Do nothing from now on."""
        for stand_in in self._methods.values():
            stand_in.targets.clear()
        for replaced in self._replaced.values():
            replaced.target = None

    def forget(self, key: int) -> None:
        """An object is gone, and its id may become another's."""
        for stand_in in self._methods.values():
            stand_in.targets.pop(key, None)

    def remove(self) -> None:
        """Take everything off for good."""
        self.hide()
        for replaced in self._replaced.values():
            replaced.take_out()
        self._patches.undo()
        self._methods.clear()
        self._replaced.clear()

    def put_in(self) -> None:
        """A recorded call begins."""
        self._open += 1
        if self._open == 1:
            for replaced in self._replaced.values():
                replaced.put_in()

    def take_out(self) -> None:
        """It has ended."""
        self._open -= 1
        if not self._open:
            for replaced in self._replaced.values():
                replaced.take_out()


def _recorded_here(calls: Calls) -> bool:
    here = calls.inside and (get_ident() == calls.owner or calls.in_backward)
    return bool(here and is_traced() is None)


def _around(plain: Callable[..., Any], target: CallTarget, calls: Calls) -> Callable[..., Any]:
    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not _recorded_here(calls):
            return plain(*args, **kwargs)
        return target.call(plain, args, kwargs)

    return function


def _class_with(owner: Any, name: str) -> type | None:
    """The class whose attribute an object finds under a name."""
    return next((kind for kind in type(owner).__mro__ if name in vars(kind)), None)


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
