"""The layers of a microbench as torch runs them: a clock, functions, their inputs, the optimizer's update.

What no gradient flows to (boxes, indices, truths) is made beforehand.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from detscope.machine.accelerator import Accelerator, find_accelerator
from detscope.machine.peak import time_work
from detscope.predict.layers import kinds
from detscope.predict.layers.graph import Shape
from detscope.predict.microbench.design import LayerTrial

if TYPE_CHECKING:
    from torch import Tensor, nn

Function = Callable[..., Any]
_POOL_ELEMENTS = 1 << 20
_UPDATE_ELEMENTS = 8_000_000  # of all tensors of one update together: more than a core's own caches hold
_MOST_TENSORS = 64
_GROUP = 8  # channels
_TRUTHS = 5  # boxes that an image's anchors are compared with
_CELLS = 8  # pixels to one cell of a map
_BUSY_SIDE = 2048
_FIRST_BUSY_NS, _LONGEST_BUSY_NS = 2_000_000, 30_000_000


class Clock:
    """Adds up what passes between `start` and `stop`: calls on a processor are done when they return."""

    def __init__(self) -> None:
        self._total_ns = self._began_ns = 0

    def reset(self) -> None:
        """Forget what was added up."""
        self._total_ns = 0

    def start(self) -> None:
        """A call begins."""
        self._began_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """It has returned."""
        self._total_ns += time.perf_counter_ns() - self._began_ns

    def total_ms(self) -> float:
        """All calls since `reset`, in ms."""
        return self._total_ns / 1e6


class QueuedClock(Clock):
    """A call's kernels alone: the device is kept busy while calls are queued, and its own clock tells.

    Calls that wait for the device cannot be queued: theirs is the time until they return.
    """

    def __init__(self, accelerator: Accelerator, keep_busy: Callable[[float], None]) -> None:
        super().__init__()
        self._device, self._keep_busy = accelerator, keep_busy
        self._pairs: list[tuple[Any, Any]] = []
        self._busy_ns = _FIRST_BUSY_NS  # for how long it is kept busy

    def reset(self) -> None:
        """Forget what was added up, and give the device something to do meanwhile."""
        self._device.wait()
        self._pairs = []
        self._keep_busy(self._busy_ns / 1e9)
        self._began_ns = time.perf_counter_ns()

    def start(self) -> None:
        """A call begins."""
        self._pairs.append((self._device.make_mark(), self._device.make_mark()))
        self._device.put_mark(self._pairs[-1][0])

    def stop(self) -> None:
        """Its kernels are queued; the second mark comes after them."""
        self._device.put_mark(self._pairs[-1][1])

    def total_ms(self) -> float:
        """All calls since `reset`, in ms."""
        took_ns = time.perf_counter_ns() - self._began_ns
        self._busy_ns = max(self._busy_ns, min(2 * took_ns, _LONGEST_BUSY_NS))  # enough for the next time
        self._device.wait()
        return sum(self._device.elapsed_ns(first, last) for first, last in self._pairs) / 1e6


class LaunchClock(Clock):
    """The host's time of a call on a device: until it is queued."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._device = accelerator

    def reset(self) -> None:
        """Forget what was added up, and begin with an empty queue, which takes launches at once."""
        self._device.wait()
        super().reset()


def make_clock(device: str) -> Clock:
    """The clock of a device: cpu, cuda or cuda:1."""
    accelerator = find_accelerator(device)
    return Clock() if accelerator.is_host else QueuedClock(accelerator, make_busy_work(accelerator))


def make_busy_work(accelerator: Accelerator) -> Callable[[float], None]:
    """A function that queues work for so many seconds: products, which take the same time everywhere."""
    import torch

    one = torch.rand(_BUSY_SIDE, _BUSY_SIDE, device=accelerator.name)
    each_s = time_work(accelerator, lambda: torch.mm(one, one))

    def keep_busy(seconds: float) -> None:
        for _ in range(math.ceil(seconds / each_s)):
            torch.mm(one, one)

    return keep_busy


class LayerBench:
    """Where layers run, the clock beside them, and random numbers to copy inputs from."""

    def __init__(self, torch: Any, device: str, clock: Clock) -> None:
        self.torch, self.device, self.clock = torch, device, clock
        self._numbers = torch.randn(_POOL_ELEMENTS, device=device)

    def draw_tensor(self, shape: Shape) -> Tensor:
        """A new tensor of random numbers; copied, because drawing them takes longer than most layers."""
        made: Tensor = self.torch.empty(shape, device=self.device)
        self.fill_tensor(made)
        return made

    def fill_tensor(self, tensor: Tensor) -> None:
        """Random numbers into a tensor that is there."""
        for part in tensor.view(-1).split(_POOL_ELEMENTS):
            part.copy_(self._numbers[: len(part)])


class LayerFunction:
    """A layer that can be called, and its parameters' gradients cleared."""

    def __init__(self, function: Function, module: nn.Module | None = None) -> None:
        self._function = function
        self.module = module
        self._parameters = () if module is None else tuple(module.parameters())

    def __call__(self, *inputs: Tensor) -> Any:
        """The layer's output."""
        return self._function(*inputs)

    def clear_gradients(self) -> None:
        """As `zero_grad(set_to_none=True)`."""
        for parameter in self._parameters:
            parameter.grad = None


def make_call(bench: LayerBench, trial: LayerTrial, *, training: bool) -> LayerFunction:
    """The layer of a trial."""
    torch = bench.torch
    module = _make_module(torch.nn, trial)
    if module is not None:
        if torch.device("meta") in {one.device for one in module.parameters()}:
            module = module.to_empty(device=bench.device)
            with torch.no_grad():
                for parameter in module.parameters():
                    bench.fill_tensor(parameter)
        module = module.to(bench.device).train(training)
        return LayerFunction(module, module)
    if trial.variant == "mul":
        return LayerFunction(lambda gate, image: gate * image)
    maker = _MAKERS.get(trial.operation.kind)
    if maker is None:
        raise ValueError(f"no layer for {trial.operation.kind} {trial.variant}")
    return LayerFunction(maker(torch, bench.device, trial))


def _make_module(nn: Any, trial: LayerTrial) -> Any:
    operation, layer = trial.operation, trial.operation.convolution
    if operation.kind == kinds.CONVOLUTION and layer is not None:
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
    channels = operation.output_shape[1] if len(operation.output_shape) > 1 else 0
    if operation.kind in (kinds.MAX_POOL, kinds.AVERAGE_POOL) and trial.variant != "adaptive":
        window, stride = map(int, trial.variant.split())
        pool = nn.MaxPool2d if operation.kind == kinds.MAX_POOL else nn.AvgPool2d
        return pool(window, stride, 1 if window == 3 else 0)
    make = {
        kinds.LINEAR: lambda: nn.Linear(operation.input_shapes[0][1], channels, device="meta"),
        kinds.BATCH_NORM: lambda: nn.BatchNorm2d(channels),
        kinds.GROUP_NORM: lambda: nn.GroupNorm(channels // _GROUP, channels),
        kinds.DROPOUT: lambda: nn.Dropout(0.2),
        kinds.AVERAGE_POOL: lambda: nn.AdaptiveAvgPool2d(1),
    }.get(operation.kind)
    if make is not None:
        return make()
    made = {"relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "hardswish": nn.Hardswish}.get(trial.variant)
    if made is not None:
        return made(inplace=operation.in_place)
    return nn.Sigmoid() if trial.variant == "sigmoid" else None


def _make_step(torch: Any, device: str, trial: LayerTrial) -> Function:
    targets = torch.zeros(trial.batch, dtype=torch.long, device=device)
    return lambda scores: torch.nn.functional.cross_entropy(scores, targets)


def _make_boxes(torch: Any, device: str, count: int, side: float) -> Tensor:
    """Corners of boxes of all sizes, most of them with little in common."""
    middles = side * torch.rand(count, 2, device=device)
    halves = side * (0.02 + 0.2 * torch.rand(count, 2, device=device) ** 2)
    found: Tensor = torch.cat([(middles - halves).clamp(min=0), (middles + halves).clamp(max=side)], 1)
    return found


def _make_roi_align(torch: Any, device: str, trial: LayerTrial) -> Function:
    from torchvision.ops import roi_align

    (_, _, height, _), (boxes, _) = trial.operation.input_shapes
    count, window = trial.batch * boxes, trial.operation.output_shape[2]
    corners = _make_boxes(torch, device, count, _CELLS * height)
    images = torch.arange(count, device=device).div(boxes, rounding_mode="floor")
    regions = torch.cat([images[:, None].to(corners), corners], 1)
    return lambda image, _: roi_align(image, regions, window, 1 / _CELLS, 2)


def _make_nms(torch: Any, device: str, trial: LayerTrial) -> Function:
    from torchvision.ops import nms

    count = trial.operation.output_shape[0]
    boxes, scores = _make_boxes(torch, device, count, 512.0), torch.rand(count, device=device)
    boxes[count // 2 :] = boxes[: count - count // 2].clone()  # half of them overlap another and are left out
    return lambda _: nms(boxes, scores, 0.7)


def _make_interpolation(torch: Any, _: str, trial: LayerTrial) -> Function:
    size, functional = trial.operation.output_shape[2:], torch.nn.functional
    if trial.operation.kind == kinds.NEAREST:
        return lambda image: functional.interpolate(image, size=size, mode="nearest")
    return lambda image: functional.interpolate(image, size=size, mode="bilinear", align_corners=False)


def _make_arithmetic(torch: Any, _: str, trial: LayerTrial) -> Function:
    if trial.variant == "clamp":
        return lambda one: one.clamp(min=-1.0, max=1.0)
    found: Function = getattr(torch, trial.variant)
    return found


def _make_index(torch: Any, device: str, trial: LayerTrial) -> Function:
    shapes = (*trial.operation.input_shapes, trial.operation.output_shape)
    among, wanted = (trial.batch * shape[0] for shape in shapes)
    rows = torch.randint(among, (wanted,), device=device)
    return lambda one: one[rows]


def _make_loss(torch: Any, device: str, trial: LayerTrial) -> Function:
    rows, width = trial.operation.input_shapes[0]
    truth, functional = torch.rand(trial.batch * rows, width, device=device), torch.nn.functional
    how = "sum" if trial.operation.output_shape == (1,) else "none"
    if trial.variant == "smooth_l1":
        return lambda one: functional.smooth_l1_loss(one, truth, beta=0.1, reduction=how)
    return lambda one: functional.binary_cross_entropy_with_logits(one, truth, reduction=how)


def _make_views(torch: Any, device: str, _: LayerTrial) -> Function:
    boxes = torch.rand(64, 4, device=device)

    def run() -> None:
        boxes[:, 0]
        boxes[:, 1:3]
        boxes[:, None]
        boxes.view(-1)
        boxes.unbind(1)
        boxes.permute(1, 0)

    return run


def _make_small(torch: Any, device: str, trial: LayerTrial) -> Function:
    """Twelve operators on columns of boxes, on all of them, and on them against some truths."""
    boxes = torch.rand(int(trial.variant), 4, device=device)
    left, right = boxes[:, 0].clone(), boxes[:, 2].clone()
    row, column = left[None], torch.rand(_TRUTHS, 1, device=device)
    everywhere = left < 2

    def run() -> None:
        width = right - left
        half = 0.5 * width
        left + half
        wide = width >= 0.1
        both = wide & everywhere
        torch.stack((left, right, half, width), 1)
        torch.maximum(row, column).max(0)
        chosen = torch.nonzero(everywhere)
        boxes[chosen]
        boxes.clamp(min=0.1)
        torch.zeros_like(both)

    return run


_MAKERS: dict[str, Callable[[Any, str, LayerTrial], Function]] = {
    kinds.STEP: _make_step,
    kinds.CONCATENATE: lambda torch, _, __: lambda *parts: torch.cat(parts, 1),
    kinds.ADD: lambda _, __, trial: operator.iadd if trial.operation.in_place else operator.add,
    kinds.ROI_ALIGN: _make_roi_align,
    kinds.NMS: _make_nms,
    kinds.NEAREST: _make_interpolation,
    kinds.BILINEAR: _make_interpolation,
    kinds.ARITHMETIC: _make_arithmetic,
    kinds.REDUCTION: lambda _, __, trial: (
        (lambda one: one.sum()) if trial.variant == "sum" else (lambda one: one.max(1)[0])
    ),
    kinds.INDEX: _make_index,
    kinds.SORTING: lambda _, __, trial: (
        (lambda one: one.topk(trial.operation.output_shape[0]))
        if trial.variant == "topk"
        else (lambda one: one.sort(descending=True))
    ),
    kinds.LOSS: _make_loss,
    kinds.VIEW: _make_views,
    kinds.SMALL: _make_small,
}


def make_inputs(
    bench: LayerBench, trial: LayerTrial, *, input_gradient: bool
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Leaves that receive gradients, and the inputs themselves: copies where the layer writes in place."""
    leaves = [
        bench.draw_tensor((trial.batch * shape[0], *shape[1:])).requires_grad_(input_gradient)
        for shape in trial.operation.input_shapes
    ]
    if trial.operation.in_place and input_gradient:
        return leaves, [leaves[0].clone(), *leaves[1:]]
    return leaves, leaves


def make_update(bench: LayerBench, trial: LayerTrial) -> Callable[[], float]:
    """SGD with momentum, or AdamW, on tensors of one size; gives the ms of one of them."""
    torch, size = bench.torch, trial.operation.output_shape[0]
    count = max(2, min(_MOST_TENSORS, _UPDATE_ELEMENTS // size))
    parameters = [torch.nn.Parameter(bench.draw_tensor((size,))) for _ in range(count)]
    if trial.operation.kind == kinds.ADAM:
        optimizer = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=1e-4)
    else:
        optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, weight_decay=5e-4)
    gradients = [bench.draw_tensor((size,)) for _ in range(count)]

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
