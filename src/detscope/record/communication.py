"""Time in collectives: when each bucket of gradients was handed over, and when it was back from all ranks.

A hook of DistributedDataParallel does the same all-reduce as without one and notes its begin and end. What
the wrapper does before the model's own forward, the exchange of buffers, is noted too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from detscope import marks

Row = tuple[Any, ...]  # as in the table `communication`
GRADIENTS, BUFFERS = "gradients", "buffers"


class HostInterval:
    """A collective as the host sees it: it ends when its future is done."""

    def __init__(self, kind: str, bucket: int, size_bytes: int) -> None:
        self.kind, self.bucket, self.size_bytes = kind, bucket, size_bytes
        self.start_ns = perf_counter_ns()
        self.end_ns = 0

    def finish(self) -> None:
        """It is done."""
        self.end_ns = perf_counter_ns()

    def ready(self) -> bool:
        """Whether its end is known."""
        return self.end_ns > 0

    def times(self, _first: HostInterval) -> tuple[int, int]:
        """Begin and length."""
        return self.start_ns, self.end_ns - self.start_ns


class DeviceInterval(HostInterval):
    """A collective on a CUDA device: marks in its queues, because the host runs ahead of it."""

    def __init__(self, kind: str, bucket: int, size_bytes: int) -> None:
        super().__init__(kind, bucket, size_bytes)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()
        self._marked = False

    def finish(self) -> None:
        """Called on a stream that waits for the collective: the mark is passed when that is done."""
        self._end.record()
        self._marked = True

    def ready(self) -> bool:
        """Whether the device has passed both marks."""
        return self._marked and bool(self._end.query())

    def times(self, first: HostInterval) -> tuple[int, int]:
        """Begin and length; begins are placed by the host's time of the step's first collective."""
        assert isinstance(first, DeviceInterval)
        after_ns = round(first._begin.elapsed_time(self._begin) * 1e6)
        return first.start_ns + after_ns, round(self._begin.elapsed_time(self._end) * 1e6)


class CommunicationWatch:
    """Listens to one wrapped model from the moment it is attached; `take` hands over a step's rows."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._current: list[HostInterval] = []
        self._waiting: deque[tuple[int, list[HostInterval]]] = deque()
        self._phase: ExitStack | None = None
        self._before_forward: HostInterval | None = None

    def attach(self, wrapped: DistributedDataParallel) -> None:
        """Hook into the wrapper; torch allows one such hook per wrapper, and it stays."""
        wrapped.register_comm_hook(None, self._all_reduce(wrapped))
        self._watch_buffers(wrapped)

    def attach_to_all(self, put: Callable[[Any, str, Any], None]) -> None:
        """Hook into every wrapper that a script makes, when it is first called; `put` replaces an attribute.

        Nothing is left on the script's own modules, which it may want to copy or save. A script that has a
        hook of its own keeps it, and its gradients are not timed.
        """
        plain: Any = DistributedDataParallel.forward
        known: WeakSet[Any] = WeakSet()
        prepare = getattr(DistributedDataParallel, "_pre_forward", None)

        def forward(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
            if wrapped not in known:
                known.add(wrapped)
                if not wrapped._comm_hooks and dist.get_world_size(wrapped.process_group) > 1:
                    wrapped.register_comm_hook(None, self._all_reduce(wrapped))
                    wrapped._comm_hooks.clear()  # only a list for people; the hook itself is the reducer's
            return plain(wrapped, *args, **kwargs)

        def timed(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
            size_bytes = sum(buffer.nbytes for buffer in wrapped.modules_buffers)
            if not (size_bytes and wrapped.broadcast_buffers):
                return prepare(wrapped, *args, **kwargs)  # type: ignore[misc]
            noted = HostInterval(BUFFERS, 0, size_bytes)
            result = prepare(wrapped, *args, **kwargs)  # type: ignore[misc]
            noted.finish()
            self._current.append(noted)
            return result

        put(DistributedDataParallel, "forward", forward)
        if prepare is not None:
            put(DistributedDataParallel, "_pre_forward", timed)

    def take(self, step: int) -> list[Row]:
        """The step has ended: its rows, or those of earlier steps whose times a device owed."""
        self._waiting.append((step, self._current))
        self._current = []
        rows: list[Row] = []
        while self._waiting and all(one.ready() for one in self._waiting[0][1]):
            number, intervals = self._waiting.popleft()
            rows += [self._row(number, one, intervals) for one in intervals]
        return rows

    def finish(self) -> list[Row]:
        """Rows that a device still owed; it has done its work by now."""
        rows = [
            self._row(number, one, intervals)
            for number, intervals in self._waiting
            for one in intervals
            if one.ready()
        ]
        self._waiting.clear()
        return rows

    def _row(self, step: int, one: HostInterval, intervals: list[HostInterval]) -> Row:
        first = next(other for other in intervals if type(other) is type(one))
        return (self._rank, step, one.kind, one.bucket, one.size_bytes, *one.times(first))

    def _all_reduce(self, wrapped: DistributedDataParallel) -> Callable[[Any, GradBucket], Any]:
        group = wrapped.process_group
        ranks = dist.get_world_size(group)
        on_device = next(wrapped.parameters()).is_cuda
        interval = DeviceInterval if on_device else HostInterval

        def reduce(_state: Any, bucket: GradBucket) -> Any:
            gradients = bucket.buffer()
            gradients.mul_(1.0 / ranks)  # as without a hook, to the last bit
            noted = interval(GRADIENTS, bucket.index(), gradients.nbytes)
            self._current.append(noted)
            work = dist.all_reduce(gradients, group=group, async_op=True)
            assert work is not None

            def done(future: Any) -> torch.Tensor:
                noted.finish()
                result: torch.Tensor = future.value()[0]
                return result

            return work.get_future().then(done)

        reduce.__annotations__.clear()  # torch compares them with types, and here they are texts
        return reduce

    def _watch_buffers(self, wrapped: DistributedDataParallel) -> None:
        """From the wrapper's forward to the model's own: rank 0's buffers go to all; part of `forward`."""
        inner: nn.Module = wrapped.module
        size_bytes = sum(buffer.nbytes for buffer in inner.buffers())
        exchanged = size_bytes > 0 and wrapped.broadcast_buffers

        def begin(_module: nn.Module, _arguments: Any) -> None:
            self._phase = ExitStack()
            self._phase.enter_context(marks.phase("forward"))
            self._phase.enter_context(marks.region("exchange of buffers"))
            self._before_forward = HostInterval(BUFFERS, 0, size_bytes)

        def end(_module: nn.Module, _arguments: Any) -> None:
            phase, self._phase = self._phase, None
            if phase is None:  # the model was called without its wrapper
                return
            phase.close()
            if exchanged and self._before_forward is not None:
                self._before_forward.finish()
                self._current.append(self._before_forward)

        wrapped.register_forward_pre_hook(begin)
        inner.register_forward_pre_hook(end)
