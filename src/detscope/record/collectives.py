"""Collectives that a program calls itself: reduced losses, barriers, gathered objects, common batch norm.

All of them, by whatever name a script has bound them, end in methods of torch's `ProcessGroup` and, where the
result is waited for, of `Work`. These are replaced while somebody listens: they do the same and are timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch._C._distributed_c10d import ProcessGroup, Work

if TYPE_CHECKING:
    from detscope.record.communication import CommunicationWatch, HostInterval

Put = Callable[[Any, str, Any], None]

# methods of a group -> what they are called in the run; those that a version of torch lacks are passed over
KINDS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "gather": "gather",
    "gather_single": "gather",
    "gather_into_tensor": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "_end_coalescing": "coalesced",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
_BETWEEN_TWO = ("send", "recv")
# functions of traced programs, which go round `ProcessGroup`; their results are waited for when they are used
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}


class OwnCollectives:
    """Notes every call; numbers calls by group, so that those of all ranks can be laid beside each other."""

    def __init__(self, watch: CommunicationWatch) -> None:
        self._watch = watch
        self._numbers: dict[str, int] = {}
        self._works: WeakKeyDictionary[Any, HostInterval] = WeakKeyDictionary()
        self._results: dict[int, HostInterval] = {}  # of functional collectives, by the result's address

    def attach(self, put: Put) -> None:
        """Listen; `put` replaces an attribute."""
        for name, kind in KINDS.items():
            plain = getattr(ProcessGroup, name, None)
            if plain is not None:
                put(ProcessGroup, name, self._noted_call(plain, kind))
        put(Work, "wait", self._noted_wait(Work.wait))
        put(Work, "get_future", self._noted_future(Work.get_future))
        self._attach_functional(put)

    def _noted_call(self, plain: Callable[..., Any], kind: str) -> Callable[..., Any]:
        watch = self._watch

        @functools.wraps(plain)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not watch.listens or group.size() < 2:
                return plain(group, *args, **kwargs)
            tensors = list(_tensors((*args, *kwargs.values())))
            noted = watch.begin(kind, *self._number(group, kind, args), tensors)
            if noted is None:
                return plain(group, *args, **kwargs)
            try:
                work = plain(group, *args, **kwargs)
            except BaseException:
                watch.forget(noted)
                raise
            if isinstance(work, Work):
                watch.called(noted)
                self._works[work] = noted
            else:
                watch.end(noted)
            return work

        return call

    def _noted_wait(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            noted = self._works.pop(work, None)
            if noted is None:
                return plain(work, *args, **kwargs)
            return self._watch.wait(noted, lambda: plain(work, *args, **kwargs))

        return wait

    def _noted_future(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A hook on gradients hands its future to torch, which waits where nobody sees: it tells the end."""

        @functools.wraps(plain)
        def get_future(work: Any, *args: Any, **kwargs: Any) -> Any:
            future = plain(work, *args, **kwargs)
            noted = self._works.get(work)
            if noted is not None and noted.phase == "backward":
                del self._works[work]
                self._watch.take_for_bucket(noted)
                future.add_done_callback(lambda _: noted.finish())
            return future

        return get_future

    def _attach_functional(self, put: Put) -> None:
        from torch.distributed import _functional_collectives as functional

        for name, kind in _FUNCTIONAL.items():
            plain = getattr(functional, name, None)
            if plain is not None:
                put(functional, name, self._noted_function(plain, kind))
        put(functional, "wait_tensor", self._noted_tensor_wait(functional.wait_tensor))

    def _noted_function(self, plain: Callable[..., Any], kind: str) -> Callable[..., Any]:
        watch = self._watch

        @functools.wraps(plain)
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not watch.listens or not torch.distributed.is_initialized():
                return plain(tensor, *args, **kwargs)
            if torch.distributed.get_world_size() < 2:
                return plain(tensor, *args, **kwargs)
            number = self._numbers["functional"] = self._numbers.get("functional", -1) + 1
            noted = watch.begin(kind, "functional", number, list(_tensors((tensor,))))
            if noted is None:
                return plain(tensor, *args, **kwargs)
            try:
                result = plain(tensor, *args, **kwargs)
            except BaseException:
                watch.forget(noted)
                raise
            held = getattr(result, "elem", None)
            if held is None:  # nobody is asked to wait
                watch.end(noted)
            else:
                watch.called(noted)
                self._results[held.data_ptr()] = noted
            return result

        return call

    def _noted_tensor_wait(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def wait_tensor(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._results:
                return plain(tensor, *args, **kwargs)
            noted = self._results.pop(tensor.data_ptr(), None)
            if noted is None:
                return plain(tensor, *args, **kwargs)
            return self._watch.wait(noted, lambda: plain(tensor, *args, **kwargs))

        return wait_tensor

    def _number(self, group: Any, kind: str, args: tuple[Any, ...]) -> tuple[str | None, int]:
        """The group's name, and the how-manieth call of it this is; a pair of ranks counts for itself."""
        name = str(group.group_name)
        if kind in _BETWEEN_TWO:
            if len(args) < 2 or not isinstance(args[1], int) or len(args) < 3:
                return None, 0  # from anybody: who it was is known afterwards
            ends = (group.rank(), args[1]) if kind == "send" else (args[1], group.rank())
            name = f"{name}:{ends[0]}>{ends[1]}"
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        return name, number


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
