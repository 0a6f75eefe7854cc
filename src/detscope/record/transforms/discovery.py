"""Transforms of a data set, found by structure: callable objects that it holds, and the lists they are in.

Data sets are found too: what they do beside their transforms is theirs.

Nothing is imported and nothing is called; what is looked at is `__dict__`, and lists, tuples and dicts in it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

_DEEPEST = 12  # steps from an object to one that it holds
_MOST_OBJECTS = 2000  # to look at
_LONGEST_LIST = 64  # longer ones hold data
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)


@dataclass(eq=False)
class FoundTransform:
    """A callable object of a pipeline, or a data set."""

    transform: Any
    name: str
    origin: str  # its class with its module
    inside: str | None  # the name of the transform that holds it
    has_parts: bool = False  # it holds others, or a list of functions
    method: str = "__call__"  # by which it works


def find_transforms(holder: Any, itself: bool = False) -> list[FoundTransform]:
    """All transforms that a data set or a collate function holds, in order; and `itself`, if it is one."""
    walk = _Walk()
    if itself:
        walk.look_at(holder, None, 0)
    else:
        walk.add_dataset(holder)
        walk.look_inside(holder, None, 0)
    return walk.found


def list_attributes(holder: Any) -> dict[str, Any]:
    """What an object holds, without asking it."""
    try:
        held = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


def is_transform(value: Any) -> bool:
    """Whether it is an object whose class says in Python what a call of it does."""
    from torch.utils.data import Dataset

    if isinstance(value, (type, ModuleType, Dataset, *_FUNCTIONS)):
        return False
    return _is_written(value, "__call__")


def _is_written(value: Any, method: str) -> bool:
    """Whether its class says in Python what it does by this method."""
    owner = next((base for base in type(value).__mro__ if method in vars(base)), object)
    return isinstance(vars(owner).get(method), FunctionType)


class _Walk:
    def __init__(self) -> None:
        self.found: list[FoundTransform] = []
        self._seen: dict[int, Any] = {}  # alive until the walk is over: ids are not given twice
        self._names: dict[str, int] = {}

    def add_dataset(self, holder: Any) -> None:
        """A data set's own work; it holds no transform, since all would be inside of it."""
        method, kind = "__getitem__", type(holder)
        if not isinstance(holder, _FUNCTIONS) and _is_written(holder, method):
            name, origin = f"{kind.__name__}.{method}", f"{kind.__module__}.{kind.__qualname__}"
            self.found.append(FoundTransform(holder, name, origin, None, True, method))

    def look_inside(self, holder: Any, inside: FoundTransform | None, depth: int) -> None:
        """Look at everything that an object holds."""
        self._seen[id(holder)] = holder
        for value in list(list_attributes(holder).values()):
            if not isinstance(value, _FUNCTIONS):  # one function that is wrapped: its time is the wrapper's
                self.look_at(value, inside, depth + 1)

    def look_at(self, value: Any, inside: FoundTransform | None, depth: int) -> None:
        """Look at something that a transform or a data set holds."""
        if isinstance(value, _FUNCTIONS):
            if inside is not None and getattr(value, "__self__", None) is not inside.transform:
                inside.has_parts = True
            return
        kind = type(value)
        if depth > _DEEPEST or len(self._seen) >= _MOST_OBJECTS or id(value) in self._seen:
            return
        if kind in (list, tuple, dict):
            if len(value) <= _LONGEST_LIST:
                self._seen[id(value)] = value
                for one in list(value.values() if kind is dict else value):
                    self.look_at(one, inside, depth + 1)
            return
        if isinstance(value, (type, ModuleType)) or kind.__module__.partition(".")[0] in _STANDARD:
            if inside is not None and callable(value) and not isinstance(value, type):
                inside.has_parts = True  # functools.partial
            return
        if not is_transform(value):
            self.add_dataset(value)
            self.look_inside(value, inside, depth)
            return
        self._seen[id(value)] = value
        if inside is not None:
            inside.has_parts = True
        holder = None if inside is None else inside.name
        own = FoundTransform(value, self._name(value), f"{kind.__module__}.{kind.__qualname__}", holder)
        self.found.append(own)
        if not _has_parameters(value):
            self.look_inside(value, own, depth)

    def _name(self, transform: Any) -> str:
        """Its class, with the function that it wraps; numbered from the second on."""
        name = type(transform).__name__
        wrapped = [one for one in list_attributes(transform).values() if isinstance(one, FunctionType)]
        if len(wrapped) == 1:
            name += f"({wrapped[0].__name__})"
        self._names[name] = number = self._names.get(name, 0) + 1
        return name if number == 1 else f"{name} {number}"


_STANDARD = sys.stdlib_module_names


def _has_parameters(value: Any) -> bool:
    """Whether it is a network: its modules are no transforms."""
    from torch import nn

    return isinstance(value, nn.Module) and next(value.parameters(), None) is not None
