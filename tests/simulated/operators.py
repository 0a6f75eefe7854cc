"""Every operator of torch's gets a planted cost: the host pays for the launch, a stream does the work.

The operator itself is computed at once, on the CPU. Where a device would make the host wait for its answer
(the operator returns a number, or a tensor whose size depends on values) the host's clock goes on to the end
of the stream: torch's CUDA kernels end in `memcpy_and_sync` there (torch/include/c10/cuda/CUDAFunctions.h).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from simulated.device import ASSERTED, HostSpan, Machine
from simulated.tensors import Journey, Put, TensorSurface, find_device, is_pinned, pin
from simulated.truth import Label, Labels

ENGINE = "autograd::engine::evaluate_function: "
WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::allclose",
    "aten::_linalg_check_errors",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::bincount",
    "aten::repeat_interleave",
    "torchvision::nms",
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
FREE = {  # no kernel: memory is taken, or nothing at all happens
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::_unsafe_view",
    "aten::_reshape_alias",
    "aten::lift_fresh",
    "aten::detach",
    "aten::resize_",
    "aten::set_",
    "aten::is_same_size",
    "aten::_local_scalar_dense",  # only the copy
}
HEAVY = ("convolution", "mm", "linear", "bmm", "attention", "roi_align", "deform")


class OperatorCall(NamedTuple):
    """What a cost function is asked about."""

    name: str  # aten::convolution
    label: Label
    size_bytes: int  # of its tensors


CostFunction = Callable[[OperatorCall], int]


def plain_cost(call: OperatorCall) -> int:
    """200 us for what multiplies, 10 us for all the rest."""
    return 200_000 if any(word in call.name for word in HEAVY) else 10_000


def copy_cost(size_bytes: int) -> int:
    """12 GB/s, and 2 us to begin."""
    return 2_000 + size_bytes // 12


class Fault(NamedTuple):
    """A device-side assert or an out of memory, at the first operator for which `when` holds."""

    kind: str  # assert, memory
    when: Callable[[OperatorCall], bool]


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from find_tensors(item)


class DeviceMode(TorchDispatchMode):
    """Active in the program's thread and in that of the engine."""

    def __init__(
        self,
        machine: Machine,
        surface: TensorSurface,
        labels: Labels,
        cost: CostFunction,
        host_cost: CostFunction,
    ) -> None:
        super().__init__()
        self.machine, self.surface, self.labels = machine, surface, labels
        self.cost, self.host_cost = cost, host_cost
        self.copy_cost = copy_cost
        self.faults: list[Fault] = []
        self._checking = 0
        self._makes_on: int | None = None
        self._annotations: dict[int, list[HostSpan]] = {}  # of record_function, by thread
        self._node: Any = None  # autograd node under way
        self._node_span: HostSpan | None = None
        self._numbers: dict[int, int] = {}  # by thread: the number of the autograd node that comes next

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return self._dispatch(func, args, kwargs or {})
        finally:
            self._numbers[self.machine.thread] = torch._C._autograd._get_sequence_nr()

    def _find_number(self) -> int:
        """As the dispatcher tells the profiler: the next node's number, before the operator makes that node.

        Below autograd it is made already, so what was next after the operator before is asked for.
        """
        if not torch.is_grad_enabled():
            return -1
        return self._numbers.get(self.machine.thread, torch._C._autograd._get_sequence_nr())

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func._schema.name
        if torch.is_inference_mode_enabled():  # else autograd has taken apart what is made of others
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if name.startswith("profiler::"):
            self._follow_annotation(name, args)
            return func(*args, **kwargs)
        self.surface.settle_copies()
        self.labels.follow_operator()
        inputs = list(find_tensors((args, kwargs)))
        here = next((found for one in inputs if (found := find_device(one)) is not None), None)
        journey = self._find_journey(name, kwargs, here)
        if kwargs.pop("pin_memory", None):
            return pin(func(*args, **kwargs))
        if here is None and journey is None:
            return func(*args, **kwargs)
        self.follow_node()
        shapes = [list(one.shape) for one in inputs]
        span = self.machine.begin_span("cpu_op", name, sequence=self._find_number(), shapes=shapes)
        try:
            return self._run_on_device(func, args, kwargs, inputs, here, journey)
        finally:
            self.machine.end_span(span)

    def _find_journey(self, name: str, kwargs: dict[str, Any], here: int | None) -> Journey | None:
        """Whether what comes out lives elsewhere; the word for a device never reaches torch's C++."""
        journey = self.surface.here.journey if name == "aten::_to_copy" else None
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = torch.device("cpu")
            there = self.surface.resolve(device)
            if there is not None and there != here:
                journey = journey or Journey(there, bool(kwargs.get("non_blocking")))
        if journey is None and here is None and self._makes_on is not None:
            journey = Journey(self._makes_on, False)
        return journey

    def _run_on_device(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[torch.Tensor],
        here: int | None,
        journey: Journey | None,
    ) -> Any:
        machine, name = self.machine, func._schema.name
        call = OperatorCall(name, self.labels.find_label(), sum(one.nbytes for one in inputs))
        machine.clock.spend(self.host_cost(call))
        if name == "aten::copy_":
            return self._copy_into(func, args, kwargs)
        if name == "aten::_to_copy" and journey is not None:
            return self._copy_to(func, args, kwargs, here, journey)
        device = here if journey is None else journey.device
        assert device is not None
        broken = self._meet_fault(call, device)
        stream = machine.find_stream(device)
        if self._makes_wait(name, args, kwargs):
            machine.forbid_while_capturing(stream)
        if name in INDEXING:  # by numbers of the host's: they are brought to the device first, and waited for
            for one in args[1]:
                if one is not None and find_device(one) is None:
                    self._launch_copy("HtoD", "Pageable", one.nbytes, device)
                    machine.synchronize_stream(stream)
        if name not in FREE and not _is_view(func):
            machine.launch(f"{name.rpartition(':')[2]}_kernel", self.cost(call), stream=stream, breaks=broken)
        if self._makes_wait(name, args, kwargs):
            self._launch_copy("DtoH", "Pageable", 8, device)
            machine.synchronize_stream(stream)
        made = func(*args, **kwargs)
        self._settle_outputs(made, inputs, device)
        if stream.capture is not None and not _is_view(func):
            stream.capture.again.append(_make_again(func, args, kwargs, made))
        return made

    @contextmanager
    def make_on(self, device: int | None) -> Iterator[None]:
        """What C++ makes meanwhile lives where the tensors do that it was given."""
        before, self._makes_on = self._makes_on, device
        try:
            yield
        finally:
            self._makes_on = before

    @contextmanager
    def skip_checks(self) -> Iterator[None]:
        """What is read meanwhile a CPU alone asks for."""
        self._checking += 1
        try:
            yield
        finally:
            self._checking -= 1

    def _makes_wait(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._checking and name == "aten::_local_scalar_dense":
            return False
        if name == "aten::repeat_interleave" and kwargs.get("output_size") is not None:
            return False  # it is told how many there will be
        if name in INDEXING:  # a mask is turned into numbers of places first
            masks = [one for one in args[1] if one is not None]
            return any(one.dtype in (torch.bool, torch.uint8) for one in masks)
        return name in WAITING

    def _settle_outputs(self, made: Any, inputs: list[torch.Tensor], device: int) -> None:
        own = {one.untyped_storage()._cdata for one in inputs if find_device(one) is None}
        for one in find_tensors(made):
            if one.untyped_storage()._cdata not in own:
                self.surface.settle(one, device)

    def _meet_fault(self, call: OperatorCall, device: int) -> str | None:
        for fault in self.faults:
            if fault.when(call):
                self.faults.remove(fault)
                if fault.kind == "memory":
                    raise self.surface.make_memory_error(device, 20 << 20)
                return ASSERTED
        return None

    # ---- copies: asynchronous where `non_blocking` is asked for (aten/src/ATen/native/cuda/Copy.cu)

    def _launch_copy(self, way: str, host: str, size_bytes: int, device: int) -> int:
        """Queue a copy; when it will be done."""
        ends = {"HtoD": f"{host} -> Device", "DtoH": f"Device -> {host}"}.get(way, "Device -> Device")
        stream = self.machine.find_stream(device)
        options: dict[str, Any] = {"stream": stream, "size_bytes": size_bytes, "call": "cudaMemcpyAsync"}
        self.machine.launch(f"Memcpy {way} ({ends})", self.copy_cost(size_bytes), "copy", **options)
        return stream.free_at

    def _copy_to(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], here: int | None, journey: Journey
    ) -> torch.Tensor:
        """To another place: a new tensor. On the way to the host it is pinned, if nobody is to wait."""
        kwargs.pop("non_blocking", None)
        made: torch.Tensor = func(*args, **kwargs)
        if journey.device is not None:
            self.surface.settle(made, journey.device)
        elif journey.non_blocking:
            self.machine.forbid_while_capturing()  # cudaHostAlloc
            pin(made)
        self._travel(made, args[0], here, journey.device, journey.non_blocking, None)
        return made

    def _copy_into(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[:2]
        non_blocking = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
        here, there = find_device(source), find_device(target)
        old = target.clone() if there is None else None
        func(target, source)
        self._travel(target, source, here, there, non_blocking, old)
        stream = self.machine.find_stream(there if there is not None else here)
        if stream.capture is not None:
            stream.capture.again.append(_make_again(func, (target, source), {}, None))
        return target

    def _travel(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        here: int | None,
        there: int | None,
        non_blocking: bool,
        old: torch.Tensor | None,
    ) -> None:
        machine, size = self.machine, target.nbytes
        device = there if there is not None else here
        assert device is not None
        if here is not None and there is not None:
            self._launch_copy("DtoD" if here == there else "PtoP", "", size, device)
            return
        host, way = (source, "HtoD") if here is None else (target, "DtoH")
        pinned = is_pinned(host)
        if not non_blocking:
            machine.forbid_while_capturing(machine.find_stream(device))
        if non_blocking and not pinned and way == "HtoD":
            machine.clock.spend(self.copy_cost(size))  # into a buffer of the driver's, by the host
        done_ns = self._launch_copy(way, "Pinned" if pinned else "Pageable", size, device)
        if not non_blocking or (way == "DtoH" and not pinned):
            machine.synchronize_stream(machine.find_stream(device))
        elif way == "DtoH":
            self.surface.fill_late(target, old, done_ns)

    # ---- what the profiler hears besides operators

    def _follow_annotation(self, name: str, args: tuple[Any, ...]) -> None:
        opened = self._annotations.setdefault(self.machine.thread, [])
        if name.startswith("profiler::_record_function_enter"):
            opened.append(self.machine.begin_span("user_annotation", str(args[0])))
        elif name == "profiler::_record_function_exit" and opened:
            self.machine.end_span(opened.pop())

    def follow_node(self) -> None:
        """Autograd nodes are spans around the operators they run, with the number of their maker."""
        node = torch._C._current_autograd_node()
        if node is self._node:
            return
        self.close_node()
        if node is not None:
            # of leaves torch says all ones, which the profiler shows as -1
            number = -1 if hasattr(node, "variable") else node._sequence_nr()
            self._node = node
            self._node_span = self.machine.begin_span("cpu_op", f"{ENGINE}{node.name()}", sequence=number)
            self.machine.begin_span("cpu_op", node.name(), sequence=number)

    def close_node(self) -> None:
        if self._node_span is not None:
            self.machine.end_span(self._node_span)
        self._node = self._node_span = None


def install_functions(mode: DeviceMode, put: Put) -> None:
    """Functions of C++ that look at where tensors live.

    Some read values on a CPU and not on a device (ATen/native/Onehot.cpp, Sorting.cpp), one makes a tensor.
    """
    functional: Any = torch.nn.functional
    plain_one_hot, plain_pad = functional.one_hot, torch._C._nn.pad_sequence

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if num_classes < 0 and find_device(tensor) is not None:
            num_classes = int(tensor.max()) + 1
        with mode.skip_checks():
            made: torch.Tensor = plain_one_hot(tensor, num_classes)
        return made

    def unchecked(plain: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with mode.skip_checks():
                return plain(*args, **kwargs)

        return call

    def pad_sequence(sequences: Any, *args: Any, **kwargs: Any) -> Any:
        with mode.make_on(find_device(sequences[0])):
            return plain_pad(sequences, *args, **kwargs)

    put(functional, "one_hot", one_hot)
    put(torch._C._nn, "pad_sequence", pad_sequence)
    for owner in (torch, torch.Tensor):
        for name in ("quantile", "nanquantile"):
            put(owner, name, unchecked(getattr(owner, name)))


def _is_view(func: Any) -> bool:
    """By the schema: what it returns is an alias that is not written to."""
    returned = [one.alias_info for one in func._schema.returns]
    return bool(returned) and all(one is not None and not one.is_write for one in returned)


def _make_again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> Callable[[], None]:
    """What a graph does when it is replayed: the same computation, into the same memory."""
    outputs = list(find_tensors(made))

    def compute_again() -> None:
        with torch.no_grad(), _disable_current_modes():
            for old, new in zip(outputs, find_tensors(func(*args, **kwargs)), strict=False):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    return compute_again
