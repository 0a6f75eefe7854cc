"""Time in collectives: when each bucket of gradients was handed over, and when it was back from all ranks.

A hook of DistributedDataParallel does the same all-reduce as without one and notes its begin and end. What
the wrapper does before the model's own forward, the exchange of buffers, is noted too, and so are collectives
that a program calls itself, with the part in which it could do nothing but wait for them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, ProcessGroup, Work
from torch.nn.parallel import DistributedDataParallel

from detscope import marks
from detscope.machine.accelerator import Accelerator, find_accelerator
from detscope.record.foreign import Patches
from detscope.record.model.borders import tensors_in
from detscope.record.model.calls import put_around

# what they are called in the run -> methods of a group; those that a version of torch lacks are passed over
KINDS = {
    "all_reduce": ("allreduce", "allreduce_coalesced"),
    "reduce": ("reduce",),
    "broadcast": ("broadcast",),
    "all_gather": (
        *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
        *("all_gather_single", "all_gather_single_coalesced"),
    ),
    "gather": ("gather", "gather_single", "gather_into_tensor"),
    "scatter": ("scatter",),
    "reduce_scatter": (
        *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
        *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    ),
    "all_to_all": ("alltoall", "alltoall_base", "all_to_all_single"),
    "coalesced": ("_end_coalescing",),
    "barrier": ("barrier", "monitored_barrier"),
    "send": ("send",),
    "recv": ("recv", "recv_anysource"),
}
_BETWEEN_TWO = ("send", "recv")
# functions of traced programs, which go round `ProcessGroup`; their results are waited for when they are used
_FUNCTIONAL = {
    "all_reduce": ("all_reduce",),
    "all_gather": ("all_gather_tensor", "all_gather_single"),
    "reduce_scatter": ("reduce_scatter_tensor", "reduce_scatter_single"),
    "all_to_all": ("all_to_all_single",),
    "broadcast": ("broadcast",),
}


Result = TypeVar("Result")
Row = tuple[Any, ...]  # as in the table `communication`
GRADIENTS, BUFFERS = "gradients", "buffers"
_LONGEST_CARRIED = 8  # steps after which a collective that nobody waited for is given up


class HostInterval:
    """A collective as the host sees it: it ends when its future is done."""

    def __init__(
        self, kind: str, bucket: int, size_bytes: int, phase: str | None = None, group: str | None = None
    ) -> None:
        self.kind, self.bucket, self.size_bytes = kind, bucket, size_bytes
        self.phase, self.group = phase, group  # of a program's own collective
        self.steps_carried = 0
        self.is_over = False  # the program, or the device's queue, has it behind it
        self.called_ns = self._waits_ns = 0  # when the call returned, and when it was waited for
        self.start_ns, self.end_ns = perf_counter_ns(), 0

    def begin_waiting(self) -> None:
        """The program waits for it from now on."""
        self._waits_ns = perf_counter_ns()

    def find_blocked(self) -> tuple[int, int]:
        """From its begin until the program waited for it, and how long; without a wait the call is it."""
        if self._waits_ns:  # the call only handed it over, however short the wait then was
            return self._waits_ns - self.start_ns, self.end_ns - self._waits_ns
        return 0, (self.called_ns or self.end_ns) - self.start_ns

    def finish(self) -> None:
        """It is done."""
        self.end_ns = perf_counter_ns()
        self.is_over = True

    def is_ready(self) -> bool:
        """Whether its end is known."""
        return self.is_over

    def read_times(self, _first: HostInterval) -> tuple[int, int]:
        """Begin and length."""
        return self.start_ns, self.end_ns - self.start_ns


class DeviceInterval(HostInterval):
    """A collective on a device: marks in its queues, because the host runs ahead of it."""

    def __init__(self, accelerator: Accelerator, *about: Any) -> None:
        super().__init__(*about)
        self._accelerator = accelerator
        self._begin, self._wait, self._end = (accelerator.make_mark() for _ in range(3))
        accelerator.put_mark(self._begin)

    def begin_waiting(self) -> None:
        """The device's queue waits for it from now on."""
        super().begin_waiting()
        self._accelerator.put_mark(self._wait)

    def find_blocked(self) -> tuple[int, int]:
        """As the device's queue was blocked."""
        first, elapsed_ns = self._wait if self._waits_ns else self._begin, self._accelerator.elapsed_ns
        return elapsed_ns(self._begin, first), elapsed_ns(first, self._end)

    def finish(self) -> None:
        """Called on a stream that waits for the collective: the mark is passed when that is done."""
        self._accelerator.put_mark(self._end)
        self.is_over = True

    def is_ready(self) -> bool:
        """Whether the device has passed all its marks."""
        passed = self._accelerator.has_passed
        marks = (self._begin, self._end, *([self._wait] if self._waits_ns else []))
        return self.is_over and all(passed(mark) for mark in marks)

    def read_times(self, first: HostInterval) -> tuple[int, int]:
        """Begin and length; begins are placed by the host's time of the step's first collective."""
        assert isinstance(first, DeviceInterval)
        elapsed_ns = self._accelerator.elapsed_ns
        return first.start_ns + elapsed_ns(first._begin, self._begin), elapsed_ns(self._begin, self._end)


class CommunicationWatch:
    """Listens to one wrapped model from the moment it is attached; `take` hands over a step's rows."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.phase_now: Callable[[], str | None] = lambda: None  # None: this thread is not recorded
        # begins time that is no module's, gives what ends it
        self.set_aside: Callable[[str], Callable[[], object]] = lambda _phase: lambda: None
        self._in_hook = 0  # collectives of ours, or of one that is noted as a whole
        self._current: list[HostInterval] = []
        self._numbers: dict[str, int] = {}  # of a group's last call: those of all ranks are laid side by side
        self._works: WeakKeyDictionary[Any, HostInterval] = WeakKeyDictionary()
        self._results: dict[int, HostInterval] = {}  # of functional collectives, by the result's address
        self._waiting: deque[tuple[int, list[HostInterval]]] = deque()

    def attach_to_wrapper(self, wrapped: DistributedDataParallel) -> None:
        """Hook into the wrapper; torch allows one such hook per wrapper, and it stays.

        Before it calls the model, rank 0's buffers go to all: that is part of `forward`, and it is over when
        the model's own call begins, which is heard from outside of all hooks.
        """
        wrapped.register_comm_hook(None, self._make_reduce_hook(wrapped))
        plain = getattr(wrapped, "_pre_forward", None)
        if plain is None:
            return

        def prepare_forward(*args: Any, **kwargs: Any) -> Any:
            with marks.phase("forward"), marks.region("exchange of buffers"):
                return self._note_exchange(wrapped, plain, args, kwargs)

        setattr(wrapped, "_pre_forward", prepare_forward)  # noqa: B010

    def _note_exchange(
        self, wrapped: Any, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        size_bytes = sum(buffer.nbytes for buffer in wrapped.modules_buffers)
        if not (size_bytes and wrapped.broadcast_buffers):
            return plain(*args, **kwargs)
        noted = HostInterval(BUFFERS, 0, size_bytes)
        result = plain(*args, **kwargs)
        noted.finish()
        self._current.append(noted)
        return result

    def attach_to_all(self, patches: Patches) -> None:
        """Hook into every wrapper that a script makes, when it is first called.

        Nothing is left on the script's own modules, which it may want to copy or save. A script that has a
        hook of its own keeps it, and its gradients are not timed.
        """
        known: WeakSet[Any] = WeakSet()

        def call_forward(plain: Callable[..., Any], wrapped: Any, *args: Any, **kwargs: Any) -> Any:
            if wrapped not in known:
                known.add(wrapped)
                if not wrapped._comm_hooks and dist.get_world_size(wrapped.process_group) > 1:
                    wrapped.register_comm_hook(None, self._make_reduce_hook(wrapped))
                    wrapped._comm_hooks.clear()  # only a list for people; the hook itself is the reducer's
            return plain(wrapped, *args, **kwargs)

        def prepare_forward(plain: Callable[..., Any], wrapped: Any, *args: Any, **kwargs: Any) -> Any:
            return self._note_exchange(wrapped, plain, (wrapped, *args), kwargs)

        put_around(patches, DistributedDataParallel, "forward", call_forward, when_compiling=True)
        if hasattr(DistributedDataParallel, "_pre_forward"):
            put_around(patches, DistributedDataParallel, "_pre_forward", prepare_forward, when_compiling=True)

    # ---- a program's own collectives

    def attach_to_calls(self, patches: Patches, phase_now: Callable[[], str | None]) -> None:
        """Note collectives that the program calls itself; `phase_now` says in which phase it is."""
        from torch.distributed import _functional_collectives as functional

        self.phase_now = phase_now
        for owner, kinds, around in (
            (ProcessGroup, KINDS, self._call_collective),
            (functional, _FUNCTIONAL, self._call_function),
        ):
            for kind, names in kinds.items():
                for name in names:
                    if hasattr(owner, name):
                        put_around(patches, owner, name, functools.partial(around, kind))
        put_around(patches, Work, "wait", self._wait_for_work)
        put_around(patches, Work, "get_future", self._get_future)
        put_around(patches, functional, "wait_tensor", self._wait_for_tensor)

    def _call_collective(
        self, kind: str, plain: Callable[..., Any], group: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._in_hook or group.size() < 2:
            return plain(group, *args, **kwargs)
        name: str | None = str(group.group_name)
        if kind in _BETWEEN_TWO:  # a pair of ranks counts for itself
            if len(args) < 3 or not isinstance(args[1], int):
                name = None  # from anybody: who it was is known afterwards
            else:
                ends = (group.rank(), args[1]) if kind == "send" else (args[1], group.rank())
                name = f"{name}:{ends[0]}>{ends[1]}"
        arguments = (*args, *kwargs.values())
        noted, work = self._call_noted(kind, name, arguments, lambda: plain(group, *args, **kwargs))
        if noted is not None and isinstance(work, Work):
            self._works[work] = noted
        elif noted is not None:
            noted.finish()
        return work

    def _wait_for_work(self, plain: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        return self._wait_for(self._works.pop(work, None), lambda: plain(work, *args, **kwargs))

    def _get_future(self, plain: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        """A hook on gradients hands its future to torch, which waits where nobody sees: it tells the end."""
        future = plain(work, *args, **kwargs)
        noted = self._works.get(work)
        if noted is not None and noted.phase == "backward":
            del self._works[work]
            noted.kind, noted.phase, noted.group = GRADIENTS, None, None
            noted.bucket = sum(one.kind == GRADIENTS for one in self._current) - 1
            future.add_done_callback(lambda _: noted.finish())
        return future

    def _call_function(
        self, kind: str, plain: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._in_hook or not dist.is_initialized() or dist.get_world_size() < 2:
            return plain(tensor, *args, **kwargs)
        call = functools.partial(plain, tensor, *args, **kwargs)
        noted, result = self._call_noted(kind, "functional", (tensor,), call)
        held = getattr(result, "elem", None)
        if noted is not None and held is not None:
            self._results[held.data_ptr()] = noted
        elif noted is not None:  # nobody is asked to wait
            noted.finish()
        return result

    def _wait_for_tensor(self, plain: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        noted = self._results.pop(tensor.data_ptr(), None) if self._results else None
        return self._wait_for(noted, lambda: plain(tensor, *args, **kwargs))

    def _call_noted(
        self, kind: str, group: str | None, arguments: tuple[Any, ...], plain: Callable[[], Result]
    ) -> tuple[HostInterval | None, Result]:
        """A collective is called, the how-manieth of its group is counted; None where it is not noted."""
        number = 0
        if group is not None:
            number = self._numbers[group] = self._numbers.get(group, -1) + 1
        phase, tensors = self.phase_now(), list(tensors_in(arguments))
        accelerator = find_accelerator(str(tensors[0].device) if tensors else "cpu")
        if phase is None or accelerator.is_capturing():
            return None, plain()
        size_bytes = max((tensor.nbytes for tensor in tensors), default=0)
        self._in_hook += 1
        end_aside = self.set_aside(phase)
        noted = _make_interval(accelerator, kind, number, size_bytes, phase, group)
        self._current.append(noted)
        try:
            result = plain()
        except BaseException:
            self._current.remove(noted)
            raise
        finally:
            noted.called_ns = perf_counter_ns()  # what it gave may still have to be waited for
            self._in_hook -= 1
            end_aside()
        return noted, result

    def _wait_for(self, noted: HostInterval | None, plain: Callable[[], Result]) -> Result:
        """The program waits for a collective; None: for one that is not noted."""
        if noted is None:
            return plain()
        noted.phase = self.phase_now() or noted.phase
        back = self.set_aside(noted.phase or "other")
        noted.begin_waiting()
        try:
            return plain()
        finally:
            noted.finish()
            back()

    def take_for_forward(self, since_ns: int) -> None:
        """What was called since then, outside of all phases, was part of computing the loss."""
        for noted in self._current:
            if noted.phase == "other" and noted.start_ns >= since_ns:
                noted.phase = "forward"

    # ---- rows

    def skip_step(self) -> None:
        """What was noted belongs to no step that counts."""
        self._current = _find_carried(self._current)

    def take_step(self, step: int) -> list[Row]:
        """The step has ended: its rows, or those of earlier steps whose times a device owed."""
        ended = [one for one in self._current if one.phase is None or one.is_over]
        self._waiting.append((step, ended))
        self._current = _find_carried(self._current)
        rows: list[Row] = []
        while self._waiting and all(one.is_ready() for one in self._waiting[0][1]):
            number, intervals = self._waiting.popleft()
            rows += [self._make_row(number, one, intervals) for one in intervals]
        return rows

    def take_rest(self) -> list[Row]:
        """Rows that a device still owed; it has done its work by now."""
        rows = [
            self._make_row(number, one, intervals)
            for number, intervals in self._waiting
            for one in intervals
            if one.is_ready()
        ]
        self._waiting.clear()
        return rows

    def _make_row(self, step: int, one: HostInterval, intervals: list[HostInterval]) -> Row:
        first = next(other for other in intervals if type(other) is type(one))
        about = (one.kind, one.bucket, one.size_bytes, *one.read_times(first))
        blocked = (None, None) if one.phase is None else one.find_blocked()
        return (self.rank, step, *about, one.phase, one.group, *blocked)

    def _make_reduce_hook(self, wrapped: DistributedDataParallel) -> Callable[[Any, GradBucket], Any]:
        group = wrapped.process_group
        ranks = dist.get_world_size(group)
        accelerator = find_accelerator(str(next(wrapped.parameters()).device))

        def reduce_bucket(_state: Any, bucket: GradBucket) -> Any:
            gradients = bucket.buffer()
            gradients.mul_(1.0 / ranks)  # as without a hook, to the last bit
            noted = _make_interval(accelerator, GRADIENTS, bucket.index(), gradients.nbytes)
            self._current.append(noted)
            self._in_hook += 1
            try:
                work = dist.all_reduce(gradients, group=group, async_op=True)
            finally:
                self._in_hook -= 1
            assert work is not None
            if bucket.is_last():  # backward has computed all: what is left of it is waiting
                self.set_aside("backward")

            def end_reduce(future: Any) -> torch.Tensor:
                noted.finish()
                result: torch.Tensor = future.value()[0]
                return result

            return work.get_future().then(end_reduce)

        reduce_bucket.__annotations__.clear()  # torch compares them with types, and here they are texts
        return reduce_bucket


def _make_interval(accelerator: Accelerator, *about: Any) -> HostInterval:
    return DeviceInterval(accelerator, *about) if accelerator.has_clock else HostInterval(*about)


def _find_carried(intervals: Sequence[HostInterval]) -> list[HostInterval]:
    """Collectives that a program has called and may wait for in a later step; they are noted there."""
    found = [one for one in intervals if one.phase is not None and not one.is_over]
    for one in found:
        one.steps_carried += 1
    return [one for one in found if one.steps_carried <= _LONGEST_CARRIED]
