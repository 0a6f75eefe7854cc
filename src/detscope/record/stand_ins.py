"""What is called in the place of methods and library functions that are stages or are counted.

A method is a descriptor on its class. Whoever asks for it gets the plain method, unless a recorded call is
under way in this thread and the object is a recorded one: `torch.jit.script` and others that read source
between calls find what is always there, copies and replicas run plain, and the class is changed once per
recording. Functions of a library, and methods that somebody put on the instance, have no such place: they
are replaced when the outermost recorded call begins and put back when it ends.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from types import FunctionType, MethodType
from typing import Any

from torch.compiler import is_dynamo_compiling

from detscope.record.model.borders import Calls, Pair, is_traced
from detscope.record.patches import Patches


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
