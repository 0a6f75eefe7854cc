"""Probes on modules, methods and library functions: each writes when its target begins and ends.

At a border a probe also marks autograd nodes: a node created by a target tells, when the engine
reaches it, that this target's share of the backward pass begins. Sequence numbers decide whose node
it is: every new node gets the next number, so a node is a target's own if its number is not below
the number at which the target's last child ended. In-place operations do no harm, unlike with
`register_full_backward_hook`, and nested outputs (dicts, lists, image lists) are followed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from detscope.record.events import ENTER, EXIT, MARK, SPAN_PREFIX, EventBuffer

_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
Pair = tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], None]]
_MOST_TENSORS = 64  # followed per border; detectors hand over some dozen


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors inside nested tuples, lists, dicts and simple holders such as torchvision's ImageList."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4:
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for item in value[:_MOST_TENSORS]:
                yield from tensors_in(item, depth + 1)
        elif isinstance(getattr(value, "tensors", None), torch.Tensor):
            yield value.tensors


class BorderScribe:
    """Writes begins, ends and backward marks into a buffer; shared by all probes of a recording."""

    def __init__(self, buffer: EventBuffer) -> None:
        self.buffer = buffer
        self._pairs: dict[int, Pair] = {}
        self._marks: dict[int, Callable[[Any], None]] = {}
        # parallel stacks, one entry per open target: where its last child ended, and its mark
        self._child_ends: list[int] = []
        self._owners: list[Callable[[Any], None]] = []
        self.record_functions = False  # also write spans into torch.profiler, in operator steps
        self._spans: list[Any] = []

    def mark_of(self, number: int) -> Callable[[Any], None]:
        """The autograd prehook that says: from here on, backward belongs to this node."""
        mark = self._marks.get(number)
        if mark is None:
            extend, now, code = self.buffer.items.extend, self.buffer.now, number * 4 + MARK
            device_clock, handles = self.buffer.device_clock, self.buffer.handles

            def mark(grad_outputs: Any) -> None:  # noqa: ARG001
                extend((code, now(), -1))
                if device_clock is not None:
                    handles.append(device_clock.record())

            self._marks[number] = mark
        return mark

    def pair(self, number: int) -> Pair:
        """The two functions called around a target: before(target, args), after(target, args, output)."""
        pair = self._pairs.get(number)
        if pair is None:  # made once: probes go on and off between recorded and bare steps
            pair = self._pairs[number] = self._make_pair(number)
        return pair

    def _make_pair(self, number: int) -> Pair:
        buffer = self.buffer
        extend, now = buffer.items.extend, buffer.now
        device_clock, handles = buffer.device_clock, buffer.handles
        ends, owners = self._child_ends, self._owners
        own_mark = self.mark_of(number)
        enter, leave = number * 4 + ENTER, number * 4 + EXIT
        sequence_number = _sequence_number

        def before(target: Any, args: Any) -> None:  # noqa: ARG001
            sequence = sequence_number()
            if ends:
                since = ends[-1]
                if sequence > since:  # the parent made nodes of its own since its last child
                    _mark_own(args, since, owners[-1])
                    # what was made before this child is marked; what follows it is the child's
            ends.append(sequence)
            owners.append(own_mark)
            if self.record_functions:
                self._open_span(number)
            if device_clock is not None:
                handles.append(device_clock.record())
            extend((enter, now(), sequence))

        def after(target: Any, args: Any, output: Any) -> None:  # noqa: ARG001
            time_ns = now()
            sequence = sequence_number()
            extend((leave, time_ns, sequence))
            if device_clock is not None:
                handles.append(device_clock.record())
            if self.record_functions:
                self._close_span()
            if not ends:  # probes were attached while the target ran
                return
            since = ends.pop()
            owners.pop()
            if sequence > since:
                _mark_own(output, since, own_mark)
            if ends:
                ends[-1] = sequence

        return before, after

    def reset(self) -> None:
        """Forget open targets, after an exception left some open."""
        self._child_ends.clear()
        self._owners.clear()
        while self._spans:
            self._close_span()

    def _open_span(self, number: int) -> None:
        span = torch._C._profiler._RecordFunctionFast(f"{SPAN_PREFIX}{number}")
        span.__enter__()
        self._spans.append(span)

    def _close_span(self) -> None:
        if self._spans:
            self._spans.pop().__exit__(None, None, None)


def _mark_own(value: Any, since: int, mark: Callable[[Any], None]) -> None:
    """Mark the autograd nodes of tensors in `value` that were made at or after `since`."""
    if type(value) is torch.Tensor:
        function = value.grad_fn
        if function is not None and function._sequence_nr() >= since:
            function.register_prehook(mark)
        return
    seen: set[int] = set()
    for tensor in tensors_in(value):
        function = tensor.grad_fn
        if function is None:
            continue
        sequence = function._sequence_nr()
        if sequence >= since and sequence not in seen:
            seen.add(sequence)
            function.register_prehook(mark)


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
        self._entries: list[tuple[dict[Any, Any], Any, Any]] = []  # where, under which key, what
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []  # where, name, probe, what was there
        self._on = True

    def __len__(self) -> int:
        return len(self._entries) + len(self._replaced)

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
        self._on = False

    def resume(self) -> None:
        """Put everything on again."""
        if not self._on:
            for hooks, key, value in self._entries:
                hooks[key] = value
            for where, name, probe, _ in self._replaced:
                where[name] = probe
        self._on = True

    def remove(self) -> None:
        """Take everything off for good."""
        self.suspend()
        self._entries.clear()
        self._replaced.clear()
        self._on = True


_ABSENT = object()


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
