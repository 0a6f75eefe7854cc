"""Which layers a microbench measures: a designed set over kinds, channels, sizes and batch sizes.

It comes in rounds. Every round holds every kind, in shuffled order, so that a bench that ends early has seen
all of them; the next round draws other sizes. The same seed gives the same rounds on every machine, so draws
keep their order. Boxes come as rows of four numbers, from a few to tens of thousands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log, prod
from random import Random

from detscope.predict.layers import kinds
from detscope.predict.layers.graph import Convolution, Operation, Shape
from detscope.predict.layers.times import FIRST, INFERENCE, TRAINING, UPDATE

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)
FEW_BATCHES = tuple(batch for batch in BATCHES if batch <= 8)
SIZES = (1, 2, 3, 4, 5, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)
VIEWS, SMALL_CALLS, SMALL_ELEMENTS = 6, 12, 55  # of one run; elements of all its calls, per box
_TRIES = 200
_ROI_ELEMENTS = 2e5  # of one output: each is a mean over places that are fetched one by one


@dataclass(frozen=True)
class LayerTrial:
    """A layer to measure, `variant` where a kind has several (silu, sigmoid, ...).

    `parts`: calls of one run that are alike; the time is that of one of them.
    """

    operation: Operation
    batch: int
    stages: tuple[str, ...] = (TRAINING, INFERENCE)
    variant: str = ""
    parts: int = 1

    @property
    def largest_elements(self) -> int:
        """Elements of the largest tensor."""
        return self.batch * max(map(prod, (*self.operation.input_shapes, self.operation.output_shape)))

    @property
    def multiplications(self) -> float:
        """Of the forward pass."""
        layer = self.operation.convolution
        if layer is None:
            return 0.0
        places = self.batch * self.operation.output_elements
        return float(places * prod(layer.kernel) * layer.in_channels // layer.groups)


@dataclass(frozen=True)
class LayerLimits:
    """What a layer may cost: elements of its largest tensor, multiplications of its forward pass."""

    elements: float = 8e6
    multiplications: float = 4e8


CPU_LIMITS, CUDA_LIMITS = LayerLimits(), LayerLimits(6e7, 3e10)
Draw = Callable[[Random], LayerTrial]


def draw_rounds(seed: int = 0, limits: LayerLimits = CPU_LIMITS) -> Iterator[list[LayerTrial]]:
    """Rounds without end; each holds every kind."""
    for number in itertools.count():
        chance = Random(f"{seed} {number}")
        trials = [_draw_within(draw, chance, limits) for draw, count in _ROUND for _ in range(count)]
        chance.shuffle(trials)
        yield trials


def _draw_within(draw: Draw, chance: Random, limits: LayerLimits) -> LayerTrial:
    for _ in range(_TRIES):
        trial = draw(chance)
        if trial.largest_elements <= limits.elements and trial.multiplications <= limits.multiplications:
            return trial
    raise ValueError("limits that no layer keeps")


def _make_operation(
    kind: str, inputs: tuple[Shape, ...], output: Shape, parameters: Shape = (), *, in_place: bool = False
) -> Operation:
    """Inputs are numbered, the output comes after them."""
    numbers = tuple(range(len(inputs)))
    return Operation(kind, numbers, inputs, 0 if in_place else len(inputs), output, parameters)


def _draw_log(chance: Random, low: float, high: float) -> int:
    return round(exp(chance.uniform(log(low), log(high))))


def _draw_channels(chance: Random, low: int = 8, high: int = 1024) -> int:
    """Log-uniform; half of them multiples of 16 as networks are drawn, half odd as pruning leaves them."""
    value = exp(chance.uniform(log(low), log(high)))
    return max(16, round(value / 16) * 16) if chance.random() < 0.5 else max(1, round(value))


def _draw_size(chance: Random, low: int = 1, high: int = 112) -> int:
    return chance.choice([size for size in SIZES if low <= size <= high])


def _draw_image(chance: Random) -> Shape:
    size = _draw_size(chance)
    return (1, _draw_channels(chance), size, size)


def _draw_map(chance: Random, low: int = 2) -> Shape:
    """A feature map of a detector: channels in groups of eight."""
    size = _draw_size(chance, low)
    return (1, max(8, 8 * _draw_log(chance, 1, 32)), size, size)


def _draw_boxes(chance: Random) -> tuple[int, int]:
    return (_draw_log(chance, 8, 30_000), chance.choice((1, 4, 4, 21)))


def _make_convolution(
    chance: Random,
    inside: int,
    outside: int,
    kernel: int,
    stride: int,
    size: int,
    *,
    groups: int = 1,
    bias: bool = False,
) -> LayerTrial:
    padding = kernel // 2
    layer = Convolution(inside, outside, (kernel,) * 2, (stride,) * 2, (padding,) * 2, groups=groups)
    out = (size + 2 * padding - kernel) // stride + 1
    weight = outside * (inside // groups) * kernel * kernel
    parameters = (weight, outside) if bias else (weight,)
    shapes = ((1, inside, size, size), (1, outside, out, out))
    operation = _make_operation(kinds.CONVOLUTION, shapes[:1], shapes[1], parameters)
    return LayerTrial(replace(operation, convolution=layer), chance.choice(BATCHES))


def _draw_dense(chance: Random, *, kernel: int, high: int, sizes: tuple[int, int]) -> LayerTrial:
    size = _draw_size(chance, *sizes)
    inside, outside = _draw_channels(chance, 8, high), _draw_channels(chance, 8, high)
    return _make_convolution(chance, inside, outside, kernel, 1, size, bias=chance.random() < 0.3)


def _draw_strided(chance: Random, *, kernel: int, high: int, largest: int) -> LayerTrial:
    inside, outside = _draw_channels(chance, 8, high), _draw_channels(chance, 8, high)
    return _make_convolution(chance, inside, outside, kernel, 2, _draw_size(chance, 4, largest))


def _draw_large_window(chance: Random) -> LayerTrial:
    kernel, stride = chance.choice((5, 7)), chance.choice((1, 1, 2))
    inside, outside = _draw_channels(chance, 8, 192), _draw_channels(chance, 8, 192)
    return _make_convolution(chance, inside, outside, kernel, stride, _draw_size(chance, 7, 56))


def _draw_depthwise(chance: Random) -> LayerTrial:
    channels = _draw_channels(chance)
    kernel, stride = chance.choice((3, 3, 3, 5)), chance.choice((1, 1, 2))
    size = _draw_size(chance, 3, 112)
    return _make_convolution(chance, channels, channels, kernel, stride, size, groups=channels)


def _draw_grouped(chance: Random) -> LayerTrial:
    width, groups = _draw_log(chance, 4, 64), chance.choice((2, 3, 4, 6, 8, 13, 16, 27, 32))
    channels, stride = width * groups, chance.choice((1, 1, 1, 2))
    return _make_convolution(chance, channels, channels, 3, stride, _draw_size(chance, 4, 64), groups=groups)


def _draw_first(chance: Random) -> LayerTrial:
    """The layer that sees the images: few channels, often a stride."""
    kernel, stride = chance.choice(((3, 1), (3, 2), (3, 2), (5, 2), (7, 2), (7, 2)))
    size, channels = chance.choice((32, 48, 64, 96, 128, 160, 224)), _draw_channels(chance, 8, 96)
    trial = _make_convolution(chance, 3, channels, kernel, stride, size, bias=chance.random() < 0.3)
    return replace(trial, stages=(FIRST, INFERENCE))


def _make_trial(
    chance: Random,
    kind: str,
    inputs: tuple[Shape, ...],
    output: Shape,
    parameters: Shape = (),
    *,
    in_place: bool = False,
    variant: str = "",
    batches: Sequence[int] = BATCHES,
) -> LayerTrial:
    """At a batch size that is drawn last."""
    operation = _make_operation(kind, inputs, output, parameters, in_place=in_place)
    return LayerTrial(operation, chance.choice(batches), variant=variant)


def _draw_plain(
    chance: Random, *, kind: str, variants: tuple[str, ...] = (), in_place: float = 0.0
) -> LayerTrial:
    """One input, output of the same shape."""
    shape = _draw_image(chance)
    variant = chance.choice(variants) if variants else ""
    parameters = (shape[1], shape[1]) if kind == kinds.BATCH_NORM else ()
    inside = chance.random() < in_place
    return _make_trial(chance, kind, (shape,), shape, parameters, in_place=inside, variant=variant)


def _draw_norm(chance: Random) -> LayerTrial:
    trial = _draw_plain(chance, kind=kinds.BATCH_NORM)
    small = trial.batch * prod(trial.operation.output_shape[2:]) < 2  # nothing to take a variance of
    return replace(trial, batch=2) if small else trial


def _draw_add(chance: Random) -> LayerTrial:
    shape = _draw_image(chance)
    return _make_trial(chance, kinds.ADD, (shape, shape), shape, in_place=chance.random() < 0.5)


def _draw_gate(chance: Random) -> LayerTrial:
    """Squeeze and excite: a map times one number per channel."""
    shape = _draw_image(chance)
    return _make_trial(chance, kinds.ACTIVATION, ((1, shape[1], 1, 1), shape), shape, variant="mul")


def _draw_concatenation(chance: Random) -> LayerTrial:
    size, parts = _draw_size(chance), chance.choice((2, 2, 3, 4))
    channels = [_draw_channels(chance, 8, 512) for _ in range(parts)]
    shapes = tuple((1, count, size, size) for count in channels)
    return _make_trial(chance, kinds.CONCATENATE, shapes, (1, sum(channels), size, size))


def _draw_pool(chance: Random, *, kind: str) -> LayerTrial:
    channels, size = _draw_channels(chance), _draw_size(chance, 4, 112)
    window, stride = chance.choice(((3, 2), (3, 2), (2, 2), (3, 1)))
    out = (size + 2 * (window // 2) - window) // stride + 1 if window == 3 else size // 2
    shapes = ((1, channels, size, size),), (1, channels, out, out)
    return _make_trial(chance, kind, *shapes, variant=f"{window} {stride}")


def _draw_mean(chance: Random) -> LayerTrial:
    """The pool to one number per channel."""
    shape = _draw_image(chance)
    return _make_trial(chance, kinds.AVERAGE_POOL, (shape,), (*shape[:2], 1, 1), variant="adaptive")


def _draw_linear(chance: Random) -> LayerTrial:
    inside, outside = _draw_channels(chance, 16, 2048), _draw_channels(chance, 10, 2048)
    return _make_trial(chance, kinds.LINEAR, ((1, inside),), (1, outside), (inside * outside, outside))


def _draw_update(chance: Random, *, kind: str) -> LayerTrial:
    size = max(1, _draw_log(chance, 8, 3e6))
    return LayerTrial(_make_operation(kind, (), (size,), (size,)), 1, (UPDATE,))


def _draw_step(chance: Random) -> LayerTrial:
    return _make_trial(chance, kinds.STEP, ((1, chance.choice((10, 100, 1000))),), (1,))


def _draw_roi_align(chance: Random) -> LayerTrial:
    while True:
        batch, image = chance.choice(FEW_BATCHES), _draw_map(chance, 8)
        window, boxes = chance.choice((5, 7, 7, 14)), _draw_log(chance, 4, 512)
        output = (boxes, image[1], window, window)
        if batch * prod(output) <= _ROI_ELEMENTS:
            return LayerTrial(_make_operation(kinds.ROI_ALIGN, (image, (boxes, 5)), output), batch)


def _draw_nms(chance: Random) -> LayerTrial:
    count = _draw_log(chance, 20, 4000)
    return LayerTrial(_make_operation(kinds.NMS, ((count, 4),), (count,)), 1, (INFERENCE,))


def _draw_group_norm(chance: Random) -> LayerTrial:
    shape = _draw_map(chance)
    return _make_trial(chance, kinds.GROUP_NORM, (shape,), shape, (shape[1], shape[1]))


def _draw_nearest(chance: Random) -> LayerTrial:
    shape = _draw_map(chance)
    return _make_trial(chance, kinds.NEAREST, (shape,), (*shape[:2], 2 * shape[2], 2 * shape[3]))


def _draw_bilinear(chance: Random) -> LayerTrial:
    channels, size = chance.choice((1, 3, 3, 17)), _draw_log(chance, 14, 400)
    made = max(1, round(size * chance.uniform(0.5, 2.0)))
    shapes = ((1, channels, size, size),), (1, channels, made, made)
    return _make_trial(chance, kinds.BILINEAR, *shapes, batches=FEW_BATCHES)


def _draw_arithmetic(chance: Random) -> LayerTrial:
    shape = _draw_boxes(chance) if chance.random() < 0.6 else _draw_map(chance)
    variant, inputs = chance.choice((("sub", 2), ("div", 2), ("exp", 1), ("clamp", 1), ("maximum", 2)))
    shapes = (shape,) * inputs
    return _make_trial(chance, kinds.ARITHMETIC, shapes, shape, variant=variant, batches=FEW_BATCHES)


def _draw_reduction(chance: Random) -> LayerTrial:
    shape = _draw_boxes(chance)
    variant, output = chance.choice((("sum", (1,)), ("max", shape[:1])))
    return _make_trial(chance, kinds.REDUCTION, (shape,), output, variant=variant, batches=FEW_BATCHES)


def _draw_index(chance: Random) -> LayerTrial:
    rows, width = _draw_boxes(chance)
    chosen = max(1, round(rows * exp(chance.uniform(log(0.01), 0.0))))
    return _make_trial(chance, kinds.INDEX, ((rows, width),), (chosen, width), batches=FEW_BATCHES)


def _draw_sorting(chance: Random) -> LayerTrial:
    count = _draw_log(chance, 100, 100_000)
    variant, kept = chance.choice((("sort", count), ("topk", max(1, min(count, 1000) // 2))))
    return LayerTrial(_make_operation(kinds.SORTING, ((count,),), (kept,)), 1, (INFERENCE,), variant)


def _draw_loss(chance: Random) -> LayerTrial:
    shape, variant = _draw_boxes(chance), chance.choice(("smooth_l1", "cross_entropy"))
    output = chance.choice(((1,), shape))
    return _make_trial(chance, kinds.LOSS, (shape,), output, variant=variant, batches=FEW_BATCHES)


def draw_views(_: Random) -> LayerTrial:
    """Other shapes of the same memory: the time of one of several."""
    return LayerTrial(_make_operation(kinds.VIEW, (), (1,)), 1, (INFERENCE,), parts=VIEWS)


def draw_small(chance: Random) -> LayerTrial:
    """What is done with boxes and targets where no gradient is asked for: the time of one of several."""
    boxes = _draw_log(chance, 5, 50_000)
    size = max(1, round(boxes * SMALL_ELEMENTS / SMALL_CALLS))
    operation = _make_operation(kinds.SMALL, (), (size,))
    return LayerTrial(operation, 1, (INFERENCE,), str(boxes), parts=SMALL_CALLS)


# operators of detectors
DETECTION: tuple[tuple[Draw, int], ...] = (
    (_draw_roi_align, 2),  # boxes of one level's map, five, seven or fourteen places wide
    (_draw_nms, 1),  # boxes of one image
    (_draw_group_norm, 2),  # eight channels to a group, as heads have it
    (_draw_nearest, 2),  # a level of a pyramid, twice as large
    (_draw_bilinear, 1),  # an image made to fit, or masks
    (_draw_arithmetic, 4),  # boxes or maps, element by element
    (_draw_reduction, 2),  # to one number, or to one per row
    (_draw_index, 2),  # some of the boxes
    (_draw_sorting, 1),  # scores of one image, all of them or the best
    (_draw_loss, 3),  # of boxes or of class scores: summed up, or one for each (focal losses weigh them)
    (draw_views, 1),
    (draw_small, 3),
)
_ACTIVATIONS = ("silu", "hardswish", "sigmoid")
_ROUND: tuple[tuple[Draw, int], ...] = (
    (partial(_draw_dense, kernel=1, high=1024, sizes=(1, 64)), 14),
    (partial(_draw_dense, kernel=3, high=512, sizes=(2, 64)), 12),
    (partial(_draw_strided, kernel=3, high=512, largest=112), 5),
    (partial(_draw_strided, kernel=1, high=1024, largest=64), 4),
    (_draw_large_window, 3),
    (_draw_depthwise, 7),
    (_draw_grouped, 7),
    (_draw_first, 4),
    (_draw_norm, 5),
    (partial(_draw_plain, kind=kinds.RELU, variants=("relu",), in_place=0.8), 4),
    (partial(_draw_plain, kind=kinds.CLAMP_IN_PLACE, variants=("relu6",), in_place=1.0), 3),
    (partial(_draw_plain, kind=kinds.ACTIVATION, variants=_ACTIVATIONS, in_place=0.3), 3),
    (_draw_add, 3),
    (_draw_gate, 3),
    (_draw_concatenation, 3),
    (partial(_draw_pool, kind=kinds.MAX_POOL), 3),
    (partial(_draw_pool, kind=kinds.AVERAGE_POOL), 1),
    (_draw_mean, 3),
    (_draw_linear, 3),
    (partial(_draw_plain, kind=kinds.DROPOUT), 1),
    (partial(_draw_update, kind=kinds.PARAMETER), 3),
    (partial(_draw_update, kind=kinds.ADAM), 2),
    (_draw_step, 1),
    *DETECTION,
)
