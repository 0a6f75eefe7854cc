"""One step of a network, traced: what its operators allocate and when it goes.

Its work is left out (see `trace_hollow`), so that a step of any network takes a second or two
and little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.predict.trace.log import BACKWARD, FORWARD, StepLog, TensorLog

if TYPE_CHECKING:
    from torch import Tensor, nn

    from detscope.zoo.networks.contract import Network


@dataclass(frozen=True, eq=False)
class TracedStep:
    """A step of `batch` images; blocks of `trained` parameters, of their gradients and of the images."""

    batch: int
    log: StepLog
    trained: tuple[int, ...]
    gradients: frozenset[int]
    images: tuple[int, ...]


def trace_step(network: Network, batch: int, *, training: bool = True) -> TracedStep:
    """Trace one training step (forward and backward) or one inference; the network stays as it is."""
    from detscope.predict.trace.hollow import Hollow

    with _swapped(network.module):
        return _traced(network, batch, training, Hollow())


@contextmanager
def _swapped(module: nn.Module) -> Iterator[None]:
    """Other parameters (of the same memory) and copies of the buffers while a step is traced."""
    from torch import nn

    made: dict[int, Any] = {}
    kept = [
        (owner, dict(owner._parameters), dict(owner._buffers), owner.training) for owner in module.modules()
    ]
    try:
        for owner, parameters, buffers, _ in kept:
            for name, parameter in parameters.items():
                if parameter is not None:
                    fresh = made.get(id(parameter))
                    if fresh is None:
                        fresh = nn.Parameter(parameter.detach(), parameter.requires_grad)
                        made[id(parameter)] = fresh
                    owner._parameters[name] = fresh
            for name, buffer in buffers.items():
                if buffer is not None:
                    made.setdefault(id(buffer), buffer.clone())
                    owner._buffers[name] = made[id(buffer)]
        yield
    finally:
        for owner, parameters, buffers, training in kept:
            owner.training = training
            owner._parameters.update(parameters)
            owner._buffers.update(buffers)


def _traced(network: Network, batch: int, training: bool, run: Callable[..., Any]) -> TracedStep:
    import torch

    module = network.module
    log = TensorLog({id(part): path for path, part in module.named_modules()}, run, _wrapper(module))
    with ExitStack() as open_now:
        open_now.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        data = network.random_batch(batch)
        images = [data.inputs] if isinstance(data.inputs, torch.Tensor) else list(data.inputs)
        log.hold([*module.parameters(), *module.buffers()], "parameters")
        log.hold([*images, *_tensors_of(data.targets)], "inputs")
        trained = [one for one in module.parameters() if one.requires_grad]
        open_now.enter_context(log.modules())
        open_now.enter_context(log)
        log.phase = FORWARD
        if training:
            loss = network.loss(data)
            log.phase = BACKWARD
            loss.backward()
        else:
            found = network.infer(data.inputs)  # held until the step ends
            del found
        log.close()
    gradients = [one.grad for one in trained if one.grad is not None]
    return TracedStep(
        batch,
        log.log,
        tuple(_known(log, trained)),
        frozenset(_known(log, gradients)),
        tuple(_known(log, images)),
    )


def _wrapper(module: nn.Module) -> str:
    """The path of the innermost module that holds all parameters: its parts are the stages."""
    path = ""
    while True:
        own = [(name, part) for name, part in module.named_children() if any(True for _ in part.parameters())]
        if len(own) != 1 or any(True for _ in module.parameters(recurse=False)):
            return path
        path, module = f"{path}{own[0][0]}.", own[0][1]


def _known(log: TensorLog, tensors: Sequence[Tensor]) -> list[int]:
    found = (log.block_of(tensor) for tensor in tensors)
    return list(dict.fromkeys(number for number in found if number is not None))


def _tensors_of(value: Any) -> list[Tensor]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
