"""Functions and methods as Python calls them: copies, and what a CPU does without an operator."""

from __future__ import annotations

import sys
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from detscope.record.census.calls import look_at_call
from detscope.record.census.modes import hear_again
from detscope.record.census.operators import (
    CHECKED_ON_A_CPU_ONLY,
    FACTORIES,
    FEED,
    FROM_HOST,
    LAUNCH,
    OF_DATA,
    READ,
    TO_HOST,
)
from detscope.record.census.places import tensors_of
from detscope.record.foreign import drop_own_frames

if TYPE_CHECKING:
    from detscope.record.census.watch import Census

_TORCH = f"{torch.__path__[0]}/"
_COPIES = ("to", "cuda", "type_as")
_INDEXED = ("__getitem__", "__setitem__")


class _Call:
    """A call of the script's, made once, whatever becomes of our looking at it."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self._is_done, self._output = False, None
        self.error: Exception | None = None  # that it raised itself

    def __call__(self) -> Any:
        if not self._is_done:
            try:
                self._output, self._is_done = self._func(*self._args, **self._kwargs), True
            except Exception as error:
                self.error = error
                raise
        return self._output


class FunctionListener(TorchFunctionMode):
    """Hands every call on as it came, and gives back what came of it."""

    def __init__(self, census: Census) -> None:
        super().__init__()
        self._census = census

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        census, given = self._census, kwargs or {}
        if not census.hears(self) or census.counted:
            return func(*args, **given)
        hear_again()
        call = _Call(func, args, given)
        try:
            return self._listen(getattr(func, "__name__", ""), call, args, given)
        except Exception as error:
            if error is call.error:
                drop_own_frames(error)
                raise
            census.fail(error)
            return call()

    def _listen(self, name: str, call: _Call, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        census = self._census
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name in CHECKED_ON_A_CPU_ONLY:
            return self._call_checked(name, call, args, given)
        if first is not None and (name in TO_HOST or (name in _COPIES and _names_place(args[1:], given))):
            return self._copy(name, call, first, args, given)
        if name in FACTORIES or name == "new_tensor":
            return self._make(name, call, args, given)
        # what a function of tensors makes inside of it, as pad_sequence does, lies where they do; a list that
        # indexes becomes a tensor of the host
        census.making = name not in _INDEXED and any(
            not census.places.is_on_host(one) for one in tensors_of((args, given))
        )
        try:
            return call()
        finally:
            census.making = False

    def _tell(self, kind: str, what: str, tensor: torch.Tensor, host_ns: int = 0, detail: str = "") -> None:
        census = self._census
        try:
            where = census.look_around(_leave_us(sys._getframe(1)))
            if where is not None:
                size = tensor.numel() * tensor.element_size()
                census.add_find(where, kind, what, host_ns, size, _describe(tensor) + detail)
        except Exception as error:
            census.fail(error)

    def _call_checked(self, name: str, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        census = self._census
        if name == "one_hot" and _asks_for_the_largest(args, kwargs):
            on_device = [one for one in tensors_of((args, kwargs)) if not census.places.is_on_host(one)]
            if on_device:
                self._tell(READ, name, on_device[0])
        census.checking += 1
        try:
            return call()
        finally:
            census.checking -= 1

    def _copy(
        self, name: str, call: _Call, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """To the host, or to the device: on a CPU the words say which, on a device the tensors."""
        census, places = self._census, self._census.places
        frame = _leave_torch(_leave_us(sys._getframe(1)))
        was_there = places.is_on_host(tensor) and not places.is_copied_again(tensor, frame)
        census.counted, begin = name, perf_counter_ns()
        try:
            output = call()
        finally:
            census.counted = None
        took_ns = perf_counter_ns() - begin
        by_position = next((one for one in args[2:] if isinstance(one, bool)), False)  # before `copy`
        non_blocking = bool(kwargs.get("non_blocking", by_position))
        if not isinstance(output, torch.Tensor):
            to_host = True
        elif places.knows_devices:
            to_host = output.is_cpu
        else:
            to_host = name == "cpu" or self._says_host(args[1:], kwargs, frame)
        if to_host and not was_there:
            # into memory of the host that can wait: a piece of the device's work like any other
            kind = LAUNCH if non_blocking else TO_HOST.get(name, TO_HOST["cpu"])
            self._tell(kind, name.strip("_"), tensor, took_ns, f" non_blocking={non_blocking}")
        elif not to_host and places.comes_from_host(tensor, output):
            look = None if frame is None else look_at_call(frame.f_code, frame.f_lasti)
            asked = look is not None and look.says_later and not places.knows_devices
            generated = " generated=True" if places.is_generated(tensor) else ""
            detail = f" non_blocking={non_blocking or asked}{generated}"
            self._tell(FEED, name, tensor, took_ns, detail)
        if isinstance(output, torch.Tensor):
            if to_host:
                places.take_copy(output, tensor, frame)
            else:
                places.put_on_device(output)
        return output

    def _says_host(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> bool:
        """Whether the line says so itself: on a CPU a device that a variable names is the device."""
        other = kwargs.get("other", args[0] if args else None)
        if isinstance(other, torch.Tensor):
            return self._census.places.is_on_host(other)
        called = (_leave_us(sys._getframe(1)), frame)
        return any(self._means_host(one) for one in called if one is not None)

    def _means_host(self, frame: FrameType) -> bool:
        """Whether the call that a frame is at names the host, or the device of a tensor that lies there."""
        look = look_at_call(frame.f_code, frame.f_lasti)
        beside = frame.f_locals.get(look.device_of) if look.device_of else None
        return look.says_host or (isinstance(beside, torch.Tensor) and self._census.places.is_on_host(beside))

    def _make(self, name: str, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor is made, on the host unless a device is named."""
        census, places = self._census, self._census.places
        model = args[0] if name == "new_tensor" else None  # whose place it takes
        data = args[1:] if name == "new_tensor" else args
        source = next(iter(tensors_of(data[:1])), None) if name in (*FROM_HOST, "new_tensor") else None
        named = kwargs.get("device") is not None
        on_device = (
            (named and not self._says_host((), kwargs, _leave_torch(_leave_us(sys._getframe(1)))))
            or (model is not None and not places.is_on_host(model))
            or (source is not None and not places.is_on_host(source))
        )
        frame = _leave_torch(_leave_us(sys._getframe(1)))
        generated = name not in OF_DATA
        if not generated and frame is not None:
            generated = look_at_call(frame.f_code, frame.f_lasti).of_constants
        generated = generated and not census.is_loading
        census.making = on_device
        try:
            output = call()
        finally:
            census.making = False
        if isinstance(output, torch.Tensor):
            self._place(output, on_device, generated)
        feeds = output.is_cuda if places.knows_devices and isinstance(output, torch.Tensor) else on_device
        from_host = source is None or places.is_on_host(source)
        if feeds and from_host and name in (*FROM_HOST, "new_tensor"):
            self._tell(FEED, name, output, detail=" non_blocking=False" + " generated=True" * generated)
        return output

    def _place(self, made: torch.Tensor, on_device: bool, generated: bool) -> None:
        places = self._census.places
        if made.is_cpu if places.knows_devices else not on_device:
            places.put_on_host(made, is_generated=generated)
        elif not places.knows_devices:
            places.put_on_device(made)


def _leave_us(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not of this file: who called the function."""
    while frame is not None and frame.f_code.co_filename.startswith(__file__):
        frame = frame.f_back
    return frame


def _leave_torch(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not torch's."""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame


def _names_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    places = (torch.device, str, int, torch.Tensor)
    named = (kwargs.get("device"), kwargs.get("other"), *args[:1])
    return any(isinstance(one, places) for one in named)


def _asks_for_the_largest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    return isinstance(classes, int) and classes < 0


def _describe(tensor: torch.Tensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "1"
    return f"dtype={str(tensor.dtype).removeprefix('torch.')} shape={shape} pinned={_is_pinned(tensor)}"


def _is_pinned(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.is_pinned()) if torch.cuda.is_available() else False
    except (RuntimeError, NotImplementedError):
        return False
