"""The layers of a microbench as torch runs them: modules, their inputs, and the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from detscope.predict.layers.graph import (
    ADD,
    AVERAGE_POOL,
    BATCH_NORM,
    CONCATENATE,
    CONVOLUTION,
    DROPOUT,
    LINEAR,
    MAX_POOL,
    Shape,
)
from detscope.predict.layers.times import ADAM, STEP
from detscope.predict.microbench.clock import Clock
from detscope.predict.microbench.detection_calls import detection_call
from detscope.predict.microbench.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor, nn

_POOL_ELEMENTS = 1 << 20
_UPDATE_ELEMENTS = 8_000_000  # of all tensors of one update together: more than a core's own caches hold
_MOST_TENSORS = 64


class Bench:
    """Where layers run, the clock beside them, and random numbers to copy inputs from."""

    def __init__(self, torch: Any, device: str, clock: Clock) -> None:
        self.torch, self.device, self.clock = torch, device, clock
        self._numbers = torch.randn(_POOL_ELEMENTS, device=device)

    def random(self, shape: Shape) -> Tensor:
        """A new tensor of random numbers; copied, because drawing them takes longer than most layers."""
        made: Tensor = self.torch.empty(shape, device=self.device)
        self.fill(made)
        return made

    def fill(self, tensor: Tensor) -> None:
        """Random numbers into a tensor that is there."""
        for part in tensor.view(-1).split(_POOL_ELEMENTS):
            part.copy_(self._numbers[: len(part)])


class Call:
    """A layer that can be called, and its parameters' gradients cleared."""

    def __init__(self, function: Callable[..., Tensor], module: nn.Module | None = None) -> None:
        self._function = function
        self.module = module
        self._parameters = () if module is None else tuple(module.parameters())

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The layer's output."""
        return self._function(*inputs)

    def clear(self) -> None:
        """As `zero_grad(set_to_none=True)`."""
        for parameter in self._parameters:
            parameter.grad = None


def made_call(bench: Bench, trial: Trial, *, training: bool) -> Call:
    """The layer of a trial."""
    operation = trial.operation
    module = _module(bench.torch.nn, trial)
    if module is not None:
        if bench.torch.device("meta") in {one.device for one in module.parameters()}:
            module = module.to_empty(device=bench.device)
            with bench.torch.no_grad():
                for parameter in module.parameters():
                    bench.fill(parameter)
        module = module.to(bench.device).train(training)
        return Call(module, module)
    if operation.kind == STEP:
        targets = bench.torch.zeros(trial.batch, dtype=bench.torch.long, device=bench.device)
        return Call(lambda scores: bench.torch.nn.functional.cross_entropy(scores, targets))
    if operation.kind == CONCATENATE:
        return Call(lambda *parts: bench.torch.cat(parts, 1))
    if operation.kind == ADD:
        return Call(lambda one, other: one.add_(other) if operation.in_place else one + other)
    if trial.variant == "mul":
        return Call(lambda gate, image: gate * image)
    function = detection_call(bench.torch, bench.device, trial)
    if function is not None:
        return Call(function, function if isinstance(function, bench.torch.nn.Module) else None)
    raise ValueError(f"no layer for {operation.kind} {trial.variant}")


def _module(nn: Any, trial: Trial) -> Any:
    operation, layer = trial.operation, trial.operation.convolution
    if operation.kind == CONVOLUTION and layer is not None:
        return nn.Conv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            bias=len(operation.parameters) > 1,
            device="meta",  # filled later: drawing weights as a network does takes longer than the layer
        )
    if operation.kind == LINEAR:
        return nn.Linear(operation.input_shapes[0][1], operation.output_shape[1], device="meta")
    if operation.kind == BATCH_NORM:
        return nn.BatchNorm2d(operation.output_shape[1])
    if operation.kind == DROPOUT:
        return nn.Dropout(0.2)
    if operation.kind in (MAX_POOL, AVERAGE_POOL):
        return _pool(nn, trial)
    made = {"relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "hardswish": nn.Hardswish}.get(trial.variant)
    if made is not None:
        return made(inplace=operation.in_place)
    return nn.Sigmoid() if trial.variant == "sigmoid" else None


def _pool(nn: Any, trial: Trial) -> Any:
    if trial.variant == "adaptive":
        return nn.AdaptiveAvgPool2d(1)
    window, stride = map(int, trial.variant.split())
    padding = 1 if window == 3 else 0
    kind = nn.MaxPool2d if trial.operation.kind == MAX_POOL else nn.AvgPool2d
    return kind(window, stride, padding)


def made_inputs(
    bench: Bench, trial: Trial, *, input_gradient: bool
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Leaves that receive gradients, and the inputs themselves: copies where the layer writes in place."""
    leaves = [
        bench.random((trial.batch * shape[0], *shape[1:])).requires_grad_(input_gradient)
        for shape in trial.operation.input_shapes
    ]
    if trial.operation.in_place and input_gradient:
        return leaves, [leaves[0].clone(), *leaves[1:]]
    return leaves, leaves


def update_call(bench: Bench, trial: Trial) -> Callable[[], float]:
    """SGD with momentum, or AdamW, on tensors of one size; gives the ms of one of them."""
    torch, size = bench.torch, trial.operation.output_shape[0]
    count = max(2, min(_MOST_TENSORS, _UPDATE_ELEMENTS // size))
    parameters = [torch.nn.Parameter(bench.random((size,))) for _ in range(count)]
    if trial.operation.kind == ADAM:
        optimizer = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=1e-4)
    else:
        optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, weight_decay=5e-4)
    gradients = [bench.random((size,)) for _ in range(count)]

    def run() -> float:
        bench.clock.reset()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        bench.clock.start()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        bench.clock.stop()
        return bench.clock.total_ms() / count

    return run
