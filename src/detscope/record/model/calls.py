"""Calls of modules: `torch.nn.Module.__call__` is replaced once while something is recorded.

Nothing is put on modules, their classes or their parameters. Modules that are recorded are known by identity
in a table beside the model; all others, copies of a recorded one among them, run as always. Between recorded
steps the table is empty and the replaced call stays: changing a class again and again throws away what Python
has learnt about it. While torch makes a program of a model (compiling, exporting, tracing) calls pass
untouched.

A method that is a stage or is counted is a descriptor on its class. Whoever asks for it gets the plain
method, unless a recorded call is under way in this thread and the object is a recorded one:
`torch.jit.script` and others that read source between calls find what is always there, copies and replicas
run plain, and the class is changed once per recording. A method that is a stage for all objects of its class
(matchers and losses hang on no model) is heard anywhere in a recorded step of this thread. Functions of a
library, and methods that somebody put on the instance, have no such place: they are replaced when the
outermost recorded call begins and put back when it ends.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from operator import getitem
from threading import Lock, get_ident
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.fx  # keeps the plain call for its tracers when it is imported, so that has to come first
from torch import nn
from torch.compiler import is_compiling, is_dynamo_compiling

from detscope.record.foreign import Patches, drop_own_frames
from detscope.record.model.borders import BorderWriter, CallState, Pair, is_traced
from detscope.record.own_code import pass_over_in_warnings


@dataclass(frozen=True)
class CallTarget:
    """What is done around a call: borders are written, if there is a pair, and counts are read."""

    pair: Pair | None
    reads: tuple[Callable[[Any], None], ...]
    around: Callable[..., Any] | None = None  # called instead, where parts of calls begin or end here

    @property
    def does_something(self) -> bool:
        """Whether its calls are to be heard."""
        return bool(self.pair or self.reads or self.around)

    def call_target(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it."""
        return (self.around or self.call_plain)(plain, args, kwargs)

    def call_plain(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it as if it had nothing to do with parts."""
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


class FunctionStandIn:
    """In the place of a function: calls are heard, all else is the function's own.

    Attributes, signature and class are asked of the function: a copy would be another counter or cache.
    """

    __slots__ = ("__weakref__", "_call", "_plain")

    def __init__(self, plain: Callable[..., Any], call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_plain", plain)
        object.__setattr__(self, "_call", call)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return _stand_in_call(self)(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __getattribute__(self, name: str) -> Any:
        plain = _stand_in_plain(self)
        if name in ("__reduce__", "__reduce_ex__"):  # found by its name, as functions are
            return lambda *_: plain.__qualname__
        return getattr(plain, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_stand_in_plain(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_stand_in_plain(self), name)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(_stand_in_plain(self) == other)

    def __hash__(self) -> int:
        return hash(_stand_in_plain(self))

    def __repr__(self) -> str:
        return repr(_stand_in_plain(self))


_stand_in_plain = vars(FunctionStandIn)["_plain"].__get__
_stand_in_call = vars(FunctionStandIn)["_call"].__get__


class MethodReplacement:
    """On a class, in the place of a method."""

    def __init__(self, plain: Any, calls: CallState, functions: ReplacedFunctions) -> None:
        self._plain = plain
        self._calls = calls
        self._functions = functions
        self.targets: dict[int, CallTarget] = {}  # by the object's id
        self.of_class: dict[type, CallTarget] = {}  # for all objects of a class
        find_target = self._find_target

        def method(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            bound = plain.__get__(self_, type(self_))
            target = find_target(self_, type(self_))
            return bound(*args, **kwargs) if target is None else target(bound, args, kwargs)

        self._method = FunctionStandIn(plain, method)
        functools.update_wrapper(self, plain, updated=())  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        """Whoever sends a class by value sends the method."""
        return getitem, ((self._plain,), 0)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        plain = self._plain
        bind = getattr(type(plain), "__get__", None)
        bound = plain if bind is None else bind(plain, owner, kind)
        target = None if bind is None or is_dynamo_compiling() else self._find_target(owner, kind)
        if target is None:
            return bound
        if isinstance(plain, (FunctionType, MethodReplacement)):
            return self._method if owner is None else MethodType(self._method, owner)
        return _make_around(bound, target)  # a static method or the like

    def _find_target(self, owner: Any, kind: type | None) -> Callable[..., Any] | None:
        """What to do around a call of this object's method, if it is to be heard here and now."""
        if self.targets and id(owner) in self.targets and _recorded_here(self._calls):
            return self.targets[id(owner)].call_target
        if self.of_class and step_recorded_here(self._calls):
            for one, target in self.of_class.items():
                if isinstance(owner, one) or (owner is None and kind is not None and issubclass(kind, one)):
                    return functools.partial(self._functions.call_with_all, target.call_target)
        return None


class AccessorReplacement(MethodReplacement):
    """The same in the place of a property that gives a function: what is set goes where it always went."""

    def __init__(self, accessor: Any, calls: CallState, functions: ReplacedFunctions) -> None:
        super().__init__(accessor, calls, functions)
        self._accessor = accessor

    def __set__(self, owner: Any, value: Any) -> None:
        self._accessor.__set__(owner, value)

    def __delete__(self, owner: Any) -> None:
        self._accessor.__delete__(owner)


class _ReplacedFunction:
    """A function in a library's or an instance's own names, while a recorded call is under way."""

    def __init__(self, owner: Any, name: str, calls: CallState) -> None:
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
            self._stand_in = _make_around(plain, target.call_target, lambda: step_recorded_here(self._calls))
        vars(owner)[self._name] = self._stand_in

    def take_out(self) -> None:
        owner = self._owner()
        if owner is not None and vars(owner).get(self._name) is self._stand_in is not None:
            vars(owner)[self._name] = self._plain


class ReplacedFunctions:
    """All of a recording; in their places while something runs that is recorded."""

    def __init__(self, calls: CallState) -> None:
        self._calls = calls
        self._replaced: dict[tuple[int, str], _ReplacedFunction] = {}
        self._shown = False
        self._in_place: list[_ReplacedFunction] = []
        self._open = 0

    def show_target(self, owner: Any, name: str, target: CallTarget) -> None:
        """From now on do this around calls of a function."""
        made = self._replaced.setdefault((id(owner), name), _ReplacedFunction(owner, name, self._calls))
        made.target, self._shown = target, True

    def hide_targets(self) -> None:
        """Do nothing around them from now on."""
        self._shown = False
        for replaced in self._replaced.values():
            replaced.target = None

    def remove_all(self) -> None:
        """Put everything back for good."""
        for replaced in self._replaced.values():
            replaced.take_out()
        self._replaced.clear()

    def call_with_all(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call something with all functions in their places."""
        self._open += 1
        if self._open == 1 and self._shown:
            self._in_place = list(self._replaced.values())
            for replaced in self._in_place:
                replaced.put_in()
        try:
            return call(*args, **kwargs)
        finally:
            self._open -= 1
            if not self._open and self._in_place:
                for replaced in self._in_place:
                    replaced.take_out()
                self._in_place = []


def _recorded_here(calls: CallState) -> bool:
    here = calls.inside and (get_ident() == calls.owner or calls.in_backward)
    return bool(here and is_traced() is None)


def step_recorded_here(calls: CallState) -> bool:
    """Whether a step is recorded in this thread, whatever runs in it."""
    here = calls.active and (get_ident() == calls.owner or calls.in_backward)
    return bool(here and is_traced() is None)


def _make_around(
    plain: Callable[..., Any], target: Callable[..., Any], listens: Callable[[], bool] = lambda: True
) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not listens():
            return plain(*args, **kwargs)
        return target(plain, args, kwargs)

    return FunctionStandIn(plain, function)


# the way to ask has changed with torch's versions; without any, tracers keep the plain call all the same
_tracing = torch.fx._symbolic_trace
_fx_traces: Callable[[], bool] = getattr(
    _tracing, "_get_is_fx_tracing", lambda: bool(getattr(_tracing, "_is_fx_tracing_flag", False))
)


# handles the call of a module that no recorded call encloses: the plain call, the one that records what
# happens inside, the module, its arguments
OutsideCall = Callable[
    [Callable[..., Any], Callable[..., Any], nn.Module, tuple[Any, ...], dict[str, Any]], Any
]
_TRACERS = ("torch.jit.", "torch.onnx.")  # modules of torch's that begin to trace when they are called


def torch_captures(module: nn.Module | None = None) -> bool:
    """Whether torch makes a program of what runs now, or is about to by calling this module."""
    # a scripted or traced model runs like any other
    is_program = isinstance(module, torch.jit.ScriptModule)
    if module is not None and not is_program and type(module).__module__.startswith(_TRACERS):
        return True
    return is_compiling() or is_traced() is not None or _fx_traces()


def put_around(
    patches: Patches, owner: Any, name: str, around: Callable[..., Any], when_compiling: bool = False
) -> None:
    """Have `around(plain, ...)` called instead of a function that is called some times per step."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def call_around(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() and not when_compiling:
            return plain(*args, **kwargs)
        try:
            return around(plain, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    patches.put(owner, name, call_around)


class CallListener:
    """Hears of calls that no recorded call encloses; this one does nothing but say what is under way."""

    def __init__(
        self,
        calls: CallState | None = None,
        outside: OutsideCall | None = None,
        replaces: Callable[..., Any] | None = None,
    ) -> None:
        self.calls = calls or CallState()
        self.outside = outside  # who handles such calls instead of the recorder
        self.replaces = replaces  # what did so before the model was known

    def begin_call(self, module: nn.Module, given: Any) -> Callable[[], object] | None:  # noqa: ARG002
        """Such a call begins; what is given back is called when it ends."""
        return None

    def attach(self) -> None:
        """Begin to listen."""

    def detach(self) -> None:
        """Listen no more, for now."""

    def remove(self) -> None:
        """Put everything back for good."""


class ModuleCalls:
    """All stand-ins of one recording: `codes` says which modules are recorded now."""

    def __init__(self, borders: BorderWriter, listener: CallListener) -> None:
        self._borders = borders
        self._calls = listener.calls
        self._listener = listener
        self._patches = Patches()
        self._alone = Lock()
        self._call: Callable[..., Any] = nn.Module.__call__
        self._plain: Callable[..., Any] = nn.Module.__call__
        self._methods: dict[tuple[type, str], MethodReplacement] = {}
        self._functions = ReplacedFunctions(self._calls)
        # codes of begins by id; negative: not in one piece, see `BorderWriter.targets`
        self.codes: dict[int, int] = {}
        self.installed = False

    def install_call(self) -> None:
        """Replace `nn.Module.__call__`; a listener may handle calls that come while none is under way."""
        if self.installed:
            return
        pass_over_in_warnings()
        current = vars(nn.Module)["__call__"]
        # what a script begins with knew no model yet: this one does its work too
        plain = self._plain = vars(current)["__wrapped__"] if current is self._listener.replaces else current
        recorded = self._borders.make_call(plain, self.codes, self._calls, self._make_outermost())
        self._call = functools.wraps(plain)(recorded)
        self._patches.put(nn.Module, "__call__", self._call)
        self.installed = True

    def remove_call(self) -> None:
        """Put everything back for good."""
        self.codes.clear()
        self.hide_targets()
        self._functions.remove_all()
        self._patches.undo()
        self._methods.clear()
        self.installed = False

    def show_target(self, owner: Any, name: str, target: CallTarget) -> None:
        """From now on do this around calls of a method (or of a function, of its library module).

        The owner of a method is an object or, for all its objects, a class.
        """
        of_class = isinstance(owner, type)
        classes = (kind for kind in (owner if of_class else type(owner)).__mro__ if name in vars(kind))
        kind = None if name in vars(owner) and not of_class else next(classes, None)
        if kind is None:
            self._functions.show_target(owner, name, target)
            return
        stand_in = self._methods.get((kind, name))
        if stand_in is None:
            plain = vars(kind)[name]
            make = AccessorReplacement if hasattr(type(plain), "__set__") else MethodReplacement
            stand_in = self._methods[kind, name] = make(plain, self._calls, self._functions)
            self._patches.put(kind, name, stand_in)
        if of_class:
            stand_in.of_class[owner] = target
        else:
            stand_in.targets[id(owner)] = target

    def hide_targets(self) -> None:
        """Do nothing around methods and functions from now on."""
        for stand_in in self._methods.values():
            stand_in.targets.clear()
            stand_in.of_class.clear()
        self._functions.hide_targets()

    def forget_object(self, key: int) -> None:
        """An object is gone, and its id may become another's."""
        for stand_in in self._methods.values():
            stand_in.targets.pop(key, None)

    def _make_outermost(self) -> Callable[..., Any]:
        outside, plain = self._listener.outside, self._plain
        if outside is None:
            return self._enter_outermost

        def call_outside(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if torch_captures(module):
                return plain(module, *args, **kwargs)
            return outside(plain, self._call_inside, module, args, kwargs)

        return call_outside

    def _enter_outermost(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module is called while no recorded call is under way."""
        if id(module) not in self.codes or torch_captures() or not self._alone.acquire(blocking=False):
            return self._plain(module, *args, **kwargs)
        calls = self._calls
        calls.owner, calls.inside = get_ident(), 1
        end = self._listener.begin_call(module, (args, kwargs))
        try:
            return self._call_inside(module, *args, **kwargs)
        finally:
            if end is not None:
                end()
            calls.inside = 0
            self._alone.release()

    def _call_inside(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self._functions.call_with_all(self._call, module, *args, **kwargs)
