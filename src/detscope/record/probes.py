"""Probes on modules, methods and library functions, and how they come off again, completely."""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from detscope.record.borders import BorderScribe


class CallProbe:
    """Stands in for a method or function while recording; copies of the owner get the plain method."""

    def __init__(
        self,
        plain: Callable[..., Any],
        before: Callable[[Any, Any], None],
        after: Callable[[Any, Any, Any], None],
        owner: Any,
    ) -> None:
        self.plain = plain
        self._before = before
        self._after = after
        self._owner = owner
        self.__name__ = getattr(plain, "__name__", type(plain).__name__)
        self.__doc__ = getattr(plain, "__doc__", None)
        self.__wrapped__ = plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._before(self._owner, (args, kwargs))
        output = None
        try:
            output = self.plain(*args, **kwargs)
            return output
        finally:
            self._after(self._owner, args, output)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        copy = memo.get(id(self._owner))
        return self.plain if copy is None else getattr(type(copy), self.__name__).__get__(copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.plain, name)


class Attachments:
    """Everything put on a model or library: taken off and on again between steps, in the end completely.

    Going on again makes no new objects: those would set off the garbage collector inside the next step.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[dict[Any, Any], Any, Any]] = []  # hooks: where, under which key, what
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []  # where, name, probe, what was there
        self._classes: list[tuple[type, Any, Any]] = []  # class, its forward while recording, its own
        self._on = True

    def __len__(self) -> int:
        return len(self._entries) + len(self._replaced) + len(self._classes)

    def modules(self, targets: Iterable[tuple[nn.Module, int]], scribe: BorderScribe) -> None:
        """Record modules through the forward of their classes.

        A class's forward knows its `self`: copies and replicas made while recording run as always,
        which a forward put on an instance would not let them. Modules with a forward of their own on
        the instance, and scripted ones, get hooks.
        """
        numbers: dict[type, dict[int, int]] = defaultdict(dict)
        for module, number in targets:
            owner = class_with_forward(module)
            if owner is None:
                self.module(module, *scribe.pair(number))
            elif owner is not nn.Module:  # containers that are never called
                numbers[owner][id(module)] = number
        for owner, of_class in numbers.items():
            plain = vars(owner)["forward"]
            recorded = functools.wraps(plain)(scribe.forward(plain, of_class))
            owner.forward = recorded  # type: ignore[attr-defined]
            self._classes.append((owner, recorded, plain))

    def module(self, module: nn.Module, before: Any, after: Any) -> None:
        """Hooks around a module's forward."""
        first = module.register_forward_pre_hook(before)
        self._entries.append((module._forward_pre_hooks, first.id, before))
        self.output(module, after)

    def output(self, module: nn.Module, after: Any) -> None:
        """A hook after a module's forward, also when that raised."""
        last = module.register_forward_hook(after, always_call=True)
        self._entries.append((module._forward_hooks, last.id, after))
        self._entries.append((module._forward_hooks_always_called, last.id, True))

    def method(self, owner: Any, name: str, before: Any, after: Any) -> None:
        """A stand-in for a method, on the instance (or for a function, on its library module)."""
        earlier = vars(owner).get(name, _ABSENT)
        probe = CallProbe(getattr(owner, name), before, after, owner)
        # nn.Module.__setattr__ is passed by: a probe is no parameter, buffer or submodule
        vars(owner)[name] = probe
        self._replaced.append((vars(owner), name, probe, earlier))

    def suspend(self) -> None:
        """Take everything off, last first."""
        if self._on:
            for where, name, _, earlier in reversed(self._replaced):
                if earlier is _ABSENT:
                    where.pop(name, None)
                else:
                    where[name] = earlier
            for hooks, key, _ in self._entries:
                hooks.pop(key, None)
            for owner, recorded, plain in reversed(self._classes):
                if vars(owner)["forward"] is recorded:  # else somebody patched it meanwhile: theirs stays
                    owner.forward = plain
        self._on = False

    def resume(self) -> None:
        """Put everything on again."""
        if not self._on:
            for hooks, key, value in self._entries:
                hooks[key] = value
            for owner, recorded, plain in self._classes:
                if vars(owner)["forward"] is plain:
                    owner.forward = recorded  # type: ignore[attr-defined]
            for where, name, probe, _ in self._replaced:
                where[name] = probe
        self._on = True

    def remove(self) -> None:
        """Take everything off for good."""
        self.suspend()
        self._entries.clear()
        self._replaced.clear()
        self._classes.clear()
        self._on = True


_ABSENT = object()


def class_with_forward(module: nn.Module) -> type | None:
    """The class whose forward a module runs; None where the instance has one of its own."""
    if "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule):
        return None
    return next((owner for owner in type(module).__mro__ if "forward" in vars(owner)), None)


def resolve_target(root: nn.Module, target: str) -> tuple[str, Any, str]:
    """What a target names: its kind ("module", "method", "function"), its owner, and its path or name."""
    if ":" in target:
        library, name = target.split(":", 1)
        return "function", importlib.import_module(library), name
    if target.endswith("()"):
        path, _, name = target[:-2].rpartition(".")
        owner = root.get_submodule(path)
        getattr(owner, name)
        return "method", owner, name
    return "module", root.get_submodule(target), target


def select_modules(root: nn.Module, which: str) -> list[tuple[str, nn.Module]]:
    """Modules to record by `--modules`: all, leaf, none, or down to a depth; the root is always first."""
    named = [(path, module) for path, module in root.named_modules() if path]
    if which == "leaf":
        named = [(path, module) for path, module in named if not any(module.children())]
    elif which == "none":
        named = []
    elif which != "all":
        depth = int(which)
        named = [(path, module) for path, module in named if path.count(".") < depth]
    return [("", root), *named]


def count_parameters(modules: Sequence[tuple[str, nn.Module]]) -> dict[str, int]:
    """Parameters of each module with all that is below it."""
    return {path: sum(p.numel() for p in module.parameters()) for path, module in modules}
