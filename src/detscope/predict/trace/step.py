"""One step of a network, traced: what its operators allocate and when it goes.

Its work is left out (see `hollow`), so that a step of any network takes a second or two
and little memory. The log stands between autograd and the kernels, so it sees every operator of forward and
backward with its tensors; storages are known by identity, and freed by weak reference. What a kernel
allocates for itself is not seen here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from detscope.zoo.networks import Network

Shape = tuple[int, ...]
FORWARD, BACKWARD = "forward", "backward"


@dataclass(slots=True)
class StorageBlock:
    """One storage: when it came (the number of the operator), in which phase, and what it is."""

    size_bytes: int
    phase: str
    stage: str
    category: str = ""  # filled for what was there before the step
    until: str = ""  # phase in which it went; empty: still there at the end


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall:
    """One operator as it was called; equal only to itself, so that it is a quick key."""

    name: str  # as in "aten.convolution"
    function: Any
    phase: str
    stage: str
    module: str
    arguments: tuple[Any, ...]  # tensors as `Seen`, all else as it was
    outputs: tuple[TensorRecord, ...]
    keywords: tuple[str, ...] = ()  # names of the last arguments

    def sign_call(self) -> Any:
        """What tells two calls apart: name, shapes, strides, kinds and settings."""
        return self.name, _without_block(self.arguments)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor of an operator."""

    block: int
    shape: Shape
    stride: Shape
    dtype: Any


@cache
def _name_of(function: Any) -> str:
    return f"{function.namespace}.{function._schema.name.partition('::')[2]}"


def _without_block(value: Any) -> Any:
    if isinstance(value, TensorRecord):
        return (value.shape, value.stride, str(value.dtype))
    return tuple(map(_without_block, value)) if isinstance(value, tuple) else str(value)


@dataclass
class StepLog:
    """Blocks by number; `events`: (operator number, block, comes or goes) in order."""

    blocks: list[StorageBlock] = field(default_factory=list)
    calls: list[OperatorCall] = field(default_factory=list)
    events: list[tuple[int, int, bool]] = field(default_factory=list)


class TensorLog(TorchDispatchMode):
    """Writes a `StepLog` of a module while it is entered; `run` is what runs an operator."""

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = StepLog()
        self.phase = ""
        self._paths = {id(part): path for path, part in module.named_modules()}
        self._wrapper = _find_wrapper(module)  # with its last dot: its parts are the stages
        self._modules: list[str] = [""]
        self._run = run
        self._numbers: dict[int, int] = {}  # storage -> block
        self._references: dict[int, Any] = {}
        self.is_open = True  # else: what goes from now on is no part of the step

    def hold_tensors(self, tensors: Iterable[Tensor], category: str) -> None:
        """Blocks that are there before the step."""
        for tensor in tensors:
            self.log.blocks[self._number_block(tensor, "")].category = category

    def list_blocks(self, tensors: Iterable[Tensor]) -> list[int]:
        """The numbers of tensors' blocks, each once, where they are known."""
        found = (self._numbers.get(tensor.untyped_storage()._cdata) for tensor in tensors)
        return list(dict.fromkeys(number for number in found if number is not None))

    @contextmanager
    def follow_modules(self) -> Iterator[None]:
        """Know which module is running."""

        def enter(module: nn.Module, _: object) -> None:
            self._modules.append(self._paths.get(id(module), self._modules[-1]))

        def leave(_: nn.Module, __: object, ___: object) -> None:
            self._modules.pop()

        hooks = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and note what it made."""
        named = kwargs or {}
        if func.namespace == "prim":  # a question about a tensor, no operator
            return func(*args, **named)
        seen = tuple(self._record_value(value) for value in (*args, *named.values()))
        name = _name_of(func)
        outputs = self._run(name, func, args, named, self.phase)
        module = self._modules[-1] if self.phase == FORWARD else ""
        stage = module.removeprefix(self._wrapper).partition(".")[0]
        leaves = [outputs] if isinstance(outputs, Tensor) else tree_leaves(outputs)
        made = tuple(self._record_value(value, stage) for value in leaves if isinstance(value, Tensor))
        self.log.calls.append(OperatorCall(name, func, self.phase, stage, module, seen, made, tuple(named)))
        return outputs

    def _record_value(self, value: Any, stage: str = "") -> Any:
        if isinstance(value, Tensor):
            return TensorRecord(
                self._number_block(value, stage), tuple(value.shape), value.stride(), value.dtype
            )
        if isinstance(value, list | tuple):
            return tuple(self._record_value(item) for item in value)
        return value

    def _number_block(self, tensor: Tensor, stage: str) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.log.blocks)
            self.log.blocks.append(StorageBlock(storage.nbytes(), self.phase, stage))
            self.log.events.append((len(self.log.calls), number, True))
            self._references[key] = weakref.ref(storage, partial(self._note_gone, key))
        return number

    def _note_gone(self, key: int, _: object) -> None:
        number = self._numbers.pop(key)
        del self._references[key]
        if self.is_open:
            self.log.blocks[number].until = self.phase
            self.log.events.append((len(self.log.calls), number, False))


@dataclass(frozen=True, eq=False)
class TracedStep:
    """A step of `batch` images; blocks of `trained` parameters, of their gradients and of the images."""

    batch: int
    log: StepLog
    trained: tuple[int, ...]
    gradients: frozenset[int]
    images: tuple[int, ...]


@contextmanager
def _swap_parameters(module: nn.Module) -> Iterator[None]:
    """Other parameters (of the same memory) and copies of the buffers while a step is traced."""
    made: dict[int, Any] = {}
    kept = [
        (owner, dict(owner._parameters), dict(owner._buffers), owner.training) for owner in module.modules()
    ]
    try:
        for owner, parameters, buffers, _ in kept:
            for name, parameter in parameters.items():
                if parameter is not None:
                    fresh = nn.Parameter(parameter.detach(), parameter.requires_grad)
                    owner._parameters[name] = made.setdefault(id(parameter), fresh)
            for name, buffer in buffers.items():
                if buffer is not None:
                    owner._buffers[name] = made.setdefault(id(buffer), buffer.clone())
        yield
    finally:
        for owner, parameters, buffers, training in kept:
            owner.training = training
            owner._parameters.update(parameters)
            owner._buffers.update(buffers)


def trace_step(network: Network, batch: int, *, training: bool = True) -> TracedStep:
    """Trace one training step (forward and backward) or one inference; the network stays as it is."""
    from detscope.predict.trace.hollow import HollowRunner

    module = network.module
    with ExitStack() as open_now:
        open_now.enter_context(_swap_parameters(module))
        log = TensorLog(module, HollowRunner())
        open_now.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        data = network.random_batch(batch)
        images = [data.inputs] if isinstance(data.inputs, Tensor) else list(data.inputs)
        log.hold_tensors([*module.parameters(), *module.buffers()], "parameters")
        targets = [leaf for leaf in tree_leaves(data.targets) if isinstance(leaf, Tensor)]
        log.hold_tensors([*images, *targets], "inputs")
        trained = [one for one in module.parameters() if one.requires_grad]
        open_now.enter_context(log.follow_modules())
        open_now.enter_context(log)
        log.phase = FORWARD
        if training:
            loss = network.loss(data)
            log.phase = BACKWARD
            loss.backward()
        else:
            found = network.infer(data.inputs)  # held until the step ends
            del found
        log.is_open = False
        gradients = [one.grad for one in trained if one.grad is not None]
        numbers = [log.list_blocks(some) for some in (trained, gradients, images)]
    return TracedStep(batch, log.log, tuple(numbers[0]), frozenset(numbers[1]), tuple(numbers[2]))


def _find_wrapper(module: nn.Module) -> str:
    """The path of the innermost module that holds all parameters: its parts are the stages."""
    path = ""
    while True:
        own = [(name, part) for name, part in module.named_children() if any(True for _ in part.parameters())]
        if len(own) != 1 or any(True for _ in module.parameters(recurse=False)):
            return path
        path, module = f"{path}{own[0][0]}.", own[0][1]
