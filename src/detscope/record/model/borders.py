"""What is written when a target begins and ends, and how backward time finds its way back to it.

At a border autograd nodes are marked: a node created by a target tells, when the engine
reaches it, that this target's share of the backward pass begins. Sequence numbers decide whose node
it is: every new node gets the next number, so a node is a target's own if its number is not below
the number at which the target's last child ended. In-place operations do no harm, unlike with
`register_full_backward_hook`, and nested outputs (dicts, lists, image lists) are followed.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling
from torch.utils._python_dispatch import _disable_current_modes

from detscope.record.code_lines import CodeLook, look_at
from detscope.record.foreign import drop_own_frames
from detscope.record.steps.events import (
    ENTER,
    EXIT,
    MARK,
    NO_SEQUENCE,
    NODE_SHIFT,
    SPAN_PREFIX,
    EventBuffer,
    encode_event,
)

sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
count_modes: Callable[[], int] = torch._C._len_torch_function_stack
is_traced: Callable[[], Any] = torch._C._get_tracing_state  # None: nobody traces in this thread
Pair = tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], None]]
_WITH_MEMORY = (torch.Tensor, torch.nn.Parameter)  # other kinds may have none, and say so by an error
_MOST_TENSORS = 64  # followed per border; detectors hand over some dozen


@dataclass(eq=False)
class CallState:
    """What is under way: the stand-ins of modules, methods and functions ask it at every call."""

    active: bool = False  # somebody listens
    inside: int = 0  # a recorded call is under way
    in_backward: int = 0
    owner: int | None = None  # the thread that is recorded


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors inside nested tuples, lists, dicts and simple holders such as torchvision's ImageList.

    No code of the holders runs: one that answers to every name would answer to ours too.
    """
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield value
    elif depth < 4:
        for item in items_of(value, kind)[:_MOST_TENSORS]:
            yield from tensors_in(item, depth + 1)


def items_of(value: Any, kind: type) -> Sequence[Any]:
    """What a container holds; of other objects the attribute `tensors`, of a user's dict its data."""
    if issubclass(kind, tuple):
        return tuple.__getitem__(value, slice(None))
    if issubclass(kind, list):
        return list.__getitem__(value, slice(None))
    if issubclass(kind, dict):
        return list(dict.values(value))
    own = attributes_of(value, kind)
    if issubclass(kind, UserDict):
        return [own.get("data")]
    held = own.get("tensors")
    return [held] if isinstance(held, torch.Tensor) else []


def attributes_of(value: Any, kind: type) -> dict[str, Any]:
    """An object's own attributes, without asking it."""
    if issubclass(kind, type) or not kind.__dictoffset__:
        return {}
    own = object.__getattribute__(value, "__dict__")
    return own if type(own) is dict else {}


def open_span(name: str) -> Any:
    """Begin a span of our own in torch.profiler; it ends by `__exit__(None, None, None)`."""
    span = torch._C._profiler._RecordFunctionFast(name)
    span.__enter__()
    return span


def close_span(span: Any) -> None:
    """End a span."""
    span.__exit__(None, None, None)


class SeenTensor(NamedTuple):
    """A tensor that passed a module's border."""

    time_ns: int
    address: int  # of its storage
    shape: torch.Size
    dtype: torch.dtype
    owner: int  # the module's number


class BackwardMark:
    """Something to put on autograd nodes, as cheaply as torch allows.

    `register_prehook` makes a removable handle each time, in Python, which took half of a recorded step's
    extra cost. A node also takes the hooks of a tensor in one call of C++; the tensor is a carrier of
    ours, no tensor of the model is touched.
    """

    def __init__(self, reached: Callable[[Any], None]) -> None:
        self._reached = reached
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # of the script's, which may count
            self._carrier = torch.zeros((), requires_grad=True)
            self._carrier._backward_hooks = OrderedDict({0: reached})

    def mark_node(self, function: Any) -> None:
        """Let the engine say when it is about to run this node."""
        try:
            function._register_hook_dict(self._carrier)
        except AttributeError:  # nodes of some kinds know only the public way
            function.register_prehook(self._reached)


class BorderWriter:
    """Writes begins, ends and backward marks into a buffer; shared by all probes of a recording."""

    def __init__(
        self, buffer: EventBuffer, wants_backward: Callable[[int], bool] = lambda _number: True
    ) -> None:
        self.buffer = buffer
        self.wants_backward = wants_backward  # a mark in a device's queue where backward comes to a node
        self._pairs: dict[int, Pair] = {}
        self._marks: dict[int, BackwardMark] = {}  # by the code of a node's begin
        # parallel stacks, one entry per open target: where its last child ended, and its mark
        self._child_ends: list[int] = []
        self._owners: list[BackwardMark] = []
        self.record_functions = False  # also write spans into torch.profiler, in operator steps
        self._spans: list[Any] = []
        self.seen: list[SeenTensor] | None = None  # what passed borders of modules; None: nobody looks
        self.failed_in: int | None = None  # the innermost module that an exception left last
        self._failure = 0  # which one that was
        self.targets: dict[int, Callable[..., Any]] = {}  # by id: modules that are called in another way
        self.places: dict[str, CodeLook] = {}  # by path: from where what hangs on no model was called first

    @property
    def is_open(self) -> bool:
        """Whether a target runs."""
        return bool(self._child_ends)

    def note_place(self, path: str) -> None:
        """Something that hangs on no model is called: from where, the first time."""
        if path not in self.places:
            found = look_at(sys._getframe(1))
            if found is not None:
                self.places[path] = found

    def find_mark(self, number: int) -> BackwardMark:
        """The mark that says, when the engine reaches it: from here on, backward belongs to this node."""
        code = encode_event(number, ENTER)
        if code in self._marks:
            return self._marks[code]
        extend, now, marked = self.buffer.items.extend, self.buffer.now, encode_event(number, MARK)
        marker, handles, wants = self.buffer.marker, self.buffer.handles, self.wants_backward

        def reach_node(gradient: Any) -> None:  # noqa: ARG001
            if marker is not None:
                handles.append(marker.record() if wants(number) else None)
            extend((marked, now(), NO_SEQUENCE))

        mark = self._marks[code] = BackwardMark(reach_node)
        return mark

    def border_pair(self, number: int) -> Pair:
        """The two functions called around a target: before(target, args), after(target, args, output)."""
        if number in self._pairs:  # made once: probes go on and off between recorded and bare steps
            return self._pairs[number]
        buffer = self.buffer
        extend, now = buffer.items.extend, buffer.now
        marker, handles = buffer.marker, buffer.handles
        ends, owners = self._child_ends, self._owners
        own_mark = self.find_mark(number)
        enter, leave = encode_event(number, ENTER), encode_event(number, EXIT)

        def before(target: Any, args: Any) -> None:  # noqa: ARG001
            sequence = sequence_number()
            if ends:
                since = ends[-1]
                if sequence > since:  # the parent made nodes of its own since its last child
                    mark_own(args, since, owners[-1])
                    # what was made before this child is marked; what follows it is the child's
            ends.append(sequence)
            owners.append(own_mark)
            if self.record_functions:
                self._open_span(number)
            if marker is not None:
                handles.append(marker.record() if enter in marker.wanted else None)
            extend((enter, now(), sequence))

        def after(target: Any, args: Any, output: Any) -> None:  # noqa: ARG001
            time_ns = now()
            sequence = sequence_number()
            extend((leave, time_ns, sequence))
            if marker is not None:
                handles.append(marker.record() if enter in marker.wanted else None)
            if self.record_functions:
                self._close_span()
            if not ends:  # probes were attached while the target ran
                return
            since = ends.pop()
            owners.pop()
            if sequence > since:
                mark_own(output, since, own_mark)
            if ends:
                ends[-1] = sequence

        pair = self._pairs[number] = (before, after)
        return pair

    def mark_results(self, output: Any) -> None:
        """What somebody gives back that is no target: backward it belongs to the target that runs."""
        ends = self._child_ends
        if ends and (sequence := sequence_number()) > ends[-1]:
            mark_own(output, ends[-1], self._owners[-1])
            ends[-1] = sequence

    def note_failure(self, number: int, error: Exception) -> None:
        """A target is left by an exception; outer ones are left by the same, and the first counts."""
        drop_own_frames(error)
        if id(error) != self._failure:
            self._failure, self.failed_in = id(error), number

    def call_noted(
        self, seen: list[SeenTensor], number: int, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """A module's call while somebody looks: shapes of what goes in and comes out are noted."""
        with torch._C.DisableTorchFunction():
            _note_shapes(seen, args, number)
        output = run(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            _note_shapes(seen, output, number)
        return output

    def make_call(
        self,
        plain: Callable[..., Any],
        codes: dict[int, int],
        calls: CallState,
        outside: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    ) -> Callable[..., Any]:
        """A call of modules that records those in `codes` (by id) and leaves all others alone.

        The same as `border_pair` around the call, written out in one piece: between two convolutions Python
        code runs from cold caches, and hooks through torch's own machinery cost five times as much.
        """
        items, now = self.buffer.items, self.buffer.now
        extend = items.extend
        marker, handles = self.buffer.marker, self.buffer.handles
        ends, owners = self._child_ends, self._owners
        known_mark, code_of, leave, no_sequence = self._marks.get, codes.get, EXIT, NO_SEQUENCE
        builds_graph, traced = torch.is_grad_enabled, is_traced

        def call(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():  # known when it compiles: nothing of this is part of the program
                return plain(self_, *args, **kwargs)
            if not calls.inside and calls.active:
                try:
                    return outside(self_, args, kwargs)
                except BaseException as error:
                    drop_own_frames(error)
                    raise
            code = code_of(id(self_)) if codes and calls.inside else None  # of its begin
            if code is None or (get_ident() != calls.owner and not calls.in_backward):
                try:
                    return plain(self_, *args, **kwargs)
                except BaseException as error:
                    drop_own_frames(error)
                    raise
            if traced() is not None:  # by what a module does in its forward
                return plain(self_, *args, **kwargs)
            if code < 0:
                return self.targets[id(self_)](plain.__get__(self_), args, kwargs)
            if not builds_graph() and marker is None and not self.record_functions:
                # inference: there is no backward pass to prepare for
                extend((code, now(), no_sequence))
                try:
                    if self.seen is not None:
                        run = plain.__get__(self_)
                        return self.call_noted(self.seen, code >> NODE_SHIFT, run, args, kwargs)
                    return plain(self_, *args, **kwargs)
                except Exception as error:
                    self.note_failure(code >> NODE_SHIFT, error)
                    raise
                finally:
                    extend((code | leave, now(), no_sequence))
            sequence = sequence_number()
            if ends and sequence > ends[-1]:
                mark_own(args, ends[-1], owners[-1])
            mark = known_mark(code) or self.find_mark(code >> NODE_SHIFT)
            ends.append(sequence)
            owners.append(mark)
            if self.record_functions:
                self._open_span(code >> NODE_SHIFT)
            if marker is not None:
                handles.append(marker.record() if code in marker.wanted else None)
            extend((code, now(), sequence))
            output = None
            try:
                if self.seen is not None:
                    run = plain.__get__(self_)
                    output = self.call_noted(self.seen, code >> NODE_SHIFT, run, args, kwargs)
                else:
                    output = plain(self_, *args, **kwargs)
                return output
            except Exception as error:
                self.note_failure(code >> NODE_SHIFT, error)
                raise
            finally:
                extend((code | leave, now(), sequence := sequence_number()))
                if marker is not None:
                    handles.append(marker.record() if code in marker.wanted else None)
                if self.record_functions:
                    self._close_span()
                if ends:
                    since = ends.pop()
                    owners.pop()
                    if sequence > since:
                        mark_own(output, since, mark)
                    if ends:
                        ends[-1] = sequence

        return call

    def forget_open(self) -> None:
        """Forget open targets, after an exception left some open."""
        self._child_ends.clear()
        self._owners.clear()
        self.close_spans()

    def close_spans(self) -> None:
        """End the spans of torch.profiler that are still open."""
        while self._spans:
            self._close_span()

    def _open_span(self, number: int) -> None:
        self._spans.append(open_span(f"{SPAN_PREFIX}{number}"))

    def _close_span(self) -> None:
        if self._spans:
            close_span(self._spans.pop())


def mark_own(value: Any, since: int, mark: BackwardMark) -> None:
    """Mark the autograd nodes of tensors in `value` that were made at or after `since`."""
    if type(value) is torch.Tensor and not count_modes():
        function = value.grad_fn
        if function is not None and function._sequence_nr() >= since:
            mark.mark_node(function)
        return
    seen: set[int] = set()
    for tensor in tensors_in(value):
        function = (
            tensor.grad_fn if type(tensor) in _WITH_MEMORY and not count_modes() else _find_node(tensor)
        )
        if function is None:
            continue
        sequence = function._sequence_nr()
        if sequence >= since and sequence not in seen:
            seen.add(sequence)
            mark.mark_node(function)


def _find_node(tensor: torch.Tensor) -> Any:
    """Its autograd node, unseen by a class or a mode of the script's that notes what is done."""
    with torch._C.DisableTorchFunction():
        return tensor.grad_fn


def _note_shapes(seen: list[SeenTensor], value: Any, owner: int) -> None:
    for tensor in (value,) if type(value) is torch.Tensor else tensors_in(value):
        if type(tensor) in _WITH_MEMORY and tensor.layout is torch.strided:
            with suppress(RuntimeError):  # a wrapper of `torch.func` has none
                address = tensor.untyped_storage().data_ptr()
                seen.append(SeenTensor(perf_counter_ns(), address, tensor.shape, tensor.dtype, owner))
