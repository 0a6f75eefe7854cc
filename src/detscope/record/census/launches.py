"""Operators as the dispatcher runs them: launches, and waits that no function of Python's shows."""

from __future__ import annotations

import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detscope.record.census.operators import (
    ALLOCATION,
    CHECKS,
    COPY,
    FEED,
    HIDING,
    INDEX,
    INDEXING,
    LAUNCH,
    READ,
    SIZE,
    WITHOUT_KERNEL,
    count_driver_calls,
    is_masked,
    makes_wait,
)
from detscope.record.census.pattern import HeardOperator
from detscope.record.census.places import tensors_of

if TYPE_CHECKING:
    from detscope.record.census.watch import Census


class OperatorListener(TorchDispatchMode):
    """Runs every operator as it came, and gives back what came of it."""

    def __init__(self, census: Census) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._census = census
        self._driver_calls = count_driver_calls() if census.places.knows_devices else 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.is_inference_mode_enabled() and func._schema.name in HIDING and self._census.hears(self):
            with self:  # there autograd takes no operator apart that is made of others
                output = func.decompose(*args, **(kwargs or {}))
            if output is not NotImplemented:
                return output
        args = _with_tensor(func, args)
        begin = perf_counter_ns()
        output = func(*args, **(kwargs or {}))
        host_ns = perf_counter_ns() - begin
        if self._census.hears(self):
            try:
                self._count(func, args, kwargs or {}, output, host_ns)
            except Exception as error:
                self._census.fail(error)
        return output

    def _count(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, host_ns: int
    ) -> None:
        census, name = self._census, func._schema.name
        on_device, asked = self._follow(name, args, kwargs, output), self._has_asked_driver()
        if census.counted or (census.checking and name in CHECKS):
            return
        where = census.look_around(sys._getframe(1).f_back)
        if where is None:
            return
        heard = HeardOperator(
            name, args, kwargs, output, where[0], on_device, func.is_view, torch.is_grad_enabled(), where[2]
        )
        for listen in census.listeners:
            find = listen(heard)
            if find is not None:
                at = (find.site or where[0], *where[1:])
                census.add_find(at, find.kind, find.what, host_ns, find.bytes, find.detail)
        if not on_device:
            return
        taken = list(tensors_of(args))
        kind, what = self._find_wait(name, args, kwargs, output)
        size = sum(one.numel() * one.element_size() for one in tensors_of(output))
        if asked:
            census.add_find(where, ALLOCATION, name, host_ns, size)
        if kind is not None:
            detail = "generated=True" if kind == INDEX and self._is_generated(args[1]) else ""
            if kind == READ and taken:
                detail = f"dtype={str(taken[0].dtype).removeprefix('torch.')}"
            if name == "aten::copy_":
                detail = f"non_blocking={_is_later(args, kwargs)}"
            census.add_find(where, kind, what, host_ns, size if kind in (FEED, COPY) else 0, detail)
        if not func.is_view and name not in WITHOUT_KERNEL and kind not in (FEED, COPY):
            census.add_find(where, LAUNCH, name, host_ns, size)

    def _has_asked_driver(self) -> bool:
        """Whether the allocator had no block for what was just made; without a device nobody knows."""
        if not self._census.places.knows_devices:
            return False
        before, self._driver_calls = self._driver_calls, count_driver_calls()
        return self._driver_calls > before

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
        """Where its results lie; whether the device has any part in it."""
        census, places = self._census, self._census.places
        taken = [*tensors_of(args), *tensors_of(kwargs)]
        if places.knows_devices:
            places.follow_operator(taken, tensors_of(output))
            return not all(map(places.is_on_host, [*taken, *tensors_of(output)]))
        if taken and name != "aten::lift_fresh":  # which takes what was just made from numbers of Python's
            return places.follow_operator(taken, tensors_of(output))
        if not census.making:
            for tensor in tensors_of(output):
                places.put_on_host(tensor, is_generated=not taken and not census.is_loading)
        return census.making

    def _is_generated(self, indices: Any) -> bool:
        """Whether what is copied to index by it was made on the host of no data."""
        places = self._census.places
        return all(places.is_generated(one) for one in tensors_of(indices) if places.is_on_host(one))

    def _find_wait(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> tuple[str | None, str]:
        """The kind that it is of besides a launch, if any, and what it is called there."""
        places = self._census.places
        if name == "aten::_to_copy" and places.knows_devices:  # by what is no function of Python's
            came, went = args[0].is_cpu, next(iter(tensors_of(output))).is_cpu
            return (None if came is went else COPY if went else FEED), name
        if name == "aten::copy_":
            into, source = places.is_on_host(args[0]), places.is_on_host(args[1])
            if into is source or (into and (_is_later(args, kwargs) or places.is_to_be_moved(args[1]))):
                return None, name
            return (COPY if into else FEED), name
        if is_masked(name, args):
            return SIZE, f"{name} by a mask"
        if name in INDEXING and any(places.is_on_host(one) for one in tensors_of(args[1])):
            return INDEX, name
        return makes_wait(name, args, kwargs), name


def _is_later(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a copy into a tensor is not waited for."""
    return bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))


def _with_tensor(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Torch hands a number over in the place of a tensor that wraps one, and does not take it back."""
    if not args or not isinstance(args[0], (bool, int, float, complex)):
        return args
    if func._schema.arguments[0].type.kind() != "TensorType":
        return args
    return torch.tensor(args[0]), *args[1:]
