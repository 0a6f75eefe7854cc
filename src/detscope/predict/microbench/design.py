"""Which layers a microbench measures: a designed set over kinds, channels, sizes and batch sizes.

It comes in rounds. Every round holds every kind, in shuffled order, so that a bench that ends early has seen
all of them; the next round draws other sizes. The same seed gives the same rounds on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log, prod
from random import Random

from detscope.predict.layers import kinds
from detscope.predict.layers.graph import Convolution, Operation, Shape
from detscope.predict.layers.times import FIRST, INFERENCE, TRAINING, UPDATE

# DOC detscope.predict.microbench.design: A layer to measure, and the sizes that layers are drawn from.
# DOC detscope.predict.microbench.design: What detectors run besides convolutions: draws of their operators for the rounds of a microbench.
#
# Feature maps come as in `microbench_design`, boxes as rows of four numbers, from a few to tens of thousands.
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)
SIZES = (1, 2, 3, 4, 5, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)


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


_BOTH, _FORWARD = (TRAINING, INFERENCE), (INFERENCE,)
_ROI_ELEMENTS = 2e5  # of one output: each is a mean over places that are fetched one by one
_FEW_BATCHES = tuple(batch for batch in BATCHES if batch <= 8)
VIEWS, SMALL_CALLS, SMALL_ELEMENTS = 6, 12, 55  # of one run; elements of all its calls, per box


def _log_uniform(chance: Random, low: float, high: float) -> int:
    return round(exp(chance.uniform(log(low), log(high))))


def _map(chance: Random, low: int = 2) -> tuple[int, int, int, int]:
    size = chance.choice([size for size in SIZES if size >= low])
    return (1, max(8, 8 * _log_uniform(chance, 1, 32)), size, size)


def _boxes(chance: Random) -> tuple[int, int]:
    return (_log_uniform(chance, 8, 30_000), chance.choice((1, 4, 4, 21)))


def roi_align(chance: Random) -> LayerTrial:
    """Boxes of one level's map, five, seven or fourteen places wide."""
    while True:
        batch, image, window = chance.choice(_FEW_BATCHES), _map(chance, 8), chance.choice((5, 7, 7, 14))
        boxes = _log_uniform(chance, 4, 512)
        shape = (boxes, image[1], window, window)
        operation = Operation(kinds.ROI_ALIGN, (0, 1), (image, (boxes, 5)), 2, shape)
        if batch * operation.output_elements <= _ROI_ELEMENTS:
            return LayerTrial(operation, batch, _BOTH)


def nms(chance: Random) -> LayerTrial:
    """Boxes of one image."""
    count = _log_uniform(chance, 20, 4000)
    return LayerTrial(Operation(kinds.NMS, (0,), ((count, 4),), 1, (count,)), 1, _FORWARD)


def group_norm(chance: Random) -> LayerTrial:
    """Eight channels to a group, as heads have it."""
    shape = _map(chance)
    operation = Operation(kinds.GROUP_NORM, (0,), (shape,), 1, shape, (shape[1], shape[1]))
    return LayerTrial(operation, chance.choice(BATCHES), _BOTH)


def nearest(chance: Random) -> LayerTrial:
    """A level of a pyramid, twice as large."""
    shape = _map(chance)
    larger = (*shape[:2], 2 * shape[2], 2 * shape[3])
    return LayerTrial(Operation(kinds.NEAREST, (0,), (shape,), 1, larger), chance.choice(BATCHES), _BOTH)


def bilinear(chance: Random) -> LayerTrial:
    """An image made to fit, or masks."""
    channels, size = chance.choice((1, 3, 3, 17)), _log_uniform(chance, 14, 400)
    made = max(1, round(size * chance.uniform(0.5, 2.0)))
    shapes = ((1, channels, size, size), (1, channels, made, made))
    return LayerTrial(
        Operation(kinds.BILINEAR, (0,), shapes[:1], 1, shapes[1]), chance.choice(_FEW_BATCHES), _BOTH
    )


def arithmetic(chance: Random) -> LayerTrial:
    """Boxes or maps, element by element."""
    shape = _boxes(chance) if chance.random() < 0.6 else _map(chance)
    variant, inputs = chance.choice((("sub", 2), ("div", 2), ("exp", 1), ("clamp", 1), ("maximum", 2)))
    operation = Operation(kinds.ARITHMETIC, tuple(range(inputs)), (shape,) * inputs, inputs, shape)
    return LayerTrial(operation, chance.choice(_FEW_BATCHES), _BOTH, variant)


def reduction(chance: Random) -> LayerTrial:
    """To one number, or to one per row."""
    shape = _boxes(chance)
    variant, output = chance.choice((("sum", (1,)), ("max", shape[:1])))
    return LayerTrial(
        Operation(kinds.REDUCTION, (0,), (shape,), 1, output), chance.choice(_FEW_BATCHES), _BOTH, variant
    )


def index(chance: Random) -> LayerTrial:
    """Some of the boxes."""
    shape = _boxes(chance)
    rows = max(1, round(shape[0] * exp(chance.uniform(log(0.01), 0.0))))
    return LayerTrial(
        Operation(kinds.INDEX, (0,), (shape,), 1, (rows, shape[1])), chance.choice(_FEW_BATCHES), _BOTH
    )


def sorting(chance: Random) -> LayerTrial:
    """Scores of one image, all of them or the best."""
    count = _log_uniform(chance, 100, 100_000)
    variant, kept = chance.choice((("sort", count), ("topk", max(1, min(count, 1000) // 2))))
    return LayerTrial(Operation(kinds.SORTING, (0,), ((count,),), 1, (kept,)), 1, _FORWARD, variant)


def loss(chance: Random) -> LayerTrial:
    """Of boxes or of class scores: summed up, or one for each (focal losses weigh them)."""
    shape, variant = _boxes(chance), chance.choice(("smooth_l1", "cross_entropy"))
    output = chance.choice(((1,), shape))
    return LayerTrial(
        Operation(kinds.LOSS, (0,), (shape,), 1, output), chance.choice(_FEW_BATCHES), _BOTH, variant
    )


def draw_views(_: Random) -> LayerTrial:
    """Other shapes of the same memory: the time of one of several."""
    return LayerTrial(Operation(kinds.VIEW, (), (), 0, (1,)), 1, _FORWARD, parts=VIEWS)


def draw_small(chance: Random) -> LayerTrial:
    """What is done with boxes and targets where no gradient is asked for: the time of one of several."""
    boxes = _log_uniform(chance, 5, 50_000)
    size = max(1, round(boxes * SMALL_ELEMENTS / SMALL_CALLS))
    return LayerTrial(Operation(kinds.SMALL, (), (), 0, (size,)), 1, _FORWARD, str(boxes), parts=SMALL_CALLS)


DETECTION: tuple[tuple[Callable[[Random], LayerTrial], int], ...] = (
    (roi_align, 2),
    (nms, 1),
    (group_norm, 2),
    (nearest, 2),
    (bilinear, 1),
    (arithmetic, 4),
    (reduction, 2),
    (index, 2),
    (sorting, 1),
    (loss, 3),
    (draw_views, 1),
    (draw_small, 3),
)


_TRIES = 200


@dataclass(frozen=True)
class LayerLimits:
    """What a layer may cost: elements of its largest tensor, multiplications of its forward pass."""

    elements: float = 8e6
    multiplications: float = 4e8


CPU_LIMITS, CUDA_LIMITS = LayerLimits(), LayerLimits(6e7, 3e10)


Draw = Callable[[Random], LayerTrial]


def draw_rounds(seed: int = 0, limits: LayerLimits = CPU_LIMITS) -> Iterator[list[LayerTrial]]:
    """Rounds without end; each holds every kind."""
    number = 0
    while True:
        chance = Random(f"{seed} {number}")
        trials = [_within(draw, chance, limits) for draw, count in _ROUND for _ in range(count)]
        chance.shuffle(trials)
        yield trials
        number += 1


def count_largest(trial: LayerTrial) -> int:
    """Elements of the largest tensor of a trial."""
    shapes = (*trial.operation.input_shapes, trial.operation.output_shape)
    return trial.batch * max(prod(shape) for shape in shapes)


def count_multiplications(trial: LayerTrial) -> float:
    """Of the forward pass."""
    layer = trial.operation.convolution
    if layer is None:
        return 0.0
    places = trial.batch * trial.operation.output_elements
    return float(places * prod(layer.kernel) * layer.in_channels // layer.groups)


def _within(draw: Draw, chance: Random, limits: LayerLimits) -> LayerTrial:
    for _ in range(_TRIES):
        trial = draw(chance)
        if count_largest(trial) <= limits.elements and count_multiplications(trial) <= limits.multiplications:
            return trial
    raise ValueError("limits that no layer keeps")


def _channels(chance: Random, low: int = 8, high: int = 1024) -> int:
    """Log-uniform; half of them multiples of 16 as networks are drawn, half odd as pruning leaves them."""
    value = exp(chance.uniform(log(low), log(high)))
    return max(16, round(value / 16) * 16) if chance.random() < 0.5 else max(1, round(value))


def _size(chance: Random, low: int = 1, high: int = 112) -> int:
    return chance.choice([size for size in SIZES if low <= size <= high])


def _batch(chance: Random) -> int:
    return chance.choice(BATCHES)


def _made(
    chance: Random, inside: int, outside: int, kernel: int, stride: int, groups: int, size: int, bias: bool
) -> LayerTrial:
    layer = Convolution(
        inside, outside, (kernel, kernel), (stride, stride), (kernel // 2, kernel // 2), groups=groups
    )
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    weight = outside * (inside // groups) * kernel * kernel
    operation = Operation(
        kinds.CONVOLUTION,
        (0,),
        ((1, inside, size, size),),
        1,
        (1, outside, out, out),
        (weight, outside) if bias else (weight,),
        layer,
    )
    return LayerTrial(operation, _batch(chance))


def _pointwise(chance: Random) -> LayerTrial:
    size = _size(chance, 1, 64)
    return _made(chance, _channels(chance), _channels(chance), 1, 1, 1, size, chance.random() < 0.3)


def _three(chance: Random) -> LayerTrial:
    size = _size(chance, 2, 64)
    inside, outside = _channels(chance, 8, 512), _channels(chance, 8, 512)
    return _made(chance, inside, outside, 3, 1, 1, size, chance.random() < 0.3)


def _three_strided(chance: Random) -> LayerTrial:
    inside, outside = _channels(chance, 8, 512), _channels(chance, 8, 512)
    return _made(chance, inside, outside, 3, 2, 1, _size(chance, 4, 112), False)


def _pointwise_strided(chance: Random) -> LayerTrial:
    return _made(chance, _channels(chance), _channels(chance), 1, 2, 1, _size(chance, 4, 64), False)


def _large_window(chance: Random) -> LayerTrial:
    kernel, stride = chance.choice((5, 7)), chance.choice((1, 1, 2))
    inside, outside = _channels(chance, 8, 192), _channels(chance, 8, 192)
    return _made(chance, inside, outside, kernel, stride, 1, _size(chance, 7, 56), False)


def _depthwise(chance: Random) -> LayerTrial:
    channels, kernel, stride = _channels(chance), chance.choice((3, 3, 3, 5)), chance.choice((1, 1, 2))
    return _made(chance, channels, channels, kernel, stride, channels, _size(chance, 3, 112), False)


def _grouped(chance: Random) -> LayerTrial:
    width, groups = (
        round(exp(chance.uniform(log(4), log(64)))),
        chance.choice((2, 3, 4, 6, 8, 13, 16, 27, 32)),
    )
    channels, stride = width * groups, chance.choice((1, 1, 1, 2))
    return _made(chance, channels, channels, 3, stride, groups, _size(chance, 4, 64), False)


def _first(chance: Random) -> LayerTrial:
    """The layer that sees the images: few channels, often a stride."""
    kernel, stride = chance.choice(((3, 1), (3, 2), (3, 2), (5, 2), (7, 2), (7, 2)))
    size = chance.choice((32, 48, 64, 96, 128, 160, 224))
    trial = _made(chance, 3, _channels(chance, 8, 96), kernel, stride, 1, size, chance.random() < 0.3)
    return LayerTrial(trial.operation, trial.batch, (FIRST, INFERENCE))


def _image_shape(chance: Random) -> Shape:
    size = _size(chance)
    return (1, _channels(chance), size, size)


def _plain(kind: str, *variants: str, in_place: float = 0.0) -> Draw:
    """One input, output of the same shape."""

    def draw(chance: Random) -> LayerTrial:
        shape = _image_shape(chance)
        variant = chance.choice(variants) if variants else ""
        parameters = (shape[1], shape[1]) if kind == kinds.BATCH_NORM else ()
        output = 0 if chance.random() < in_place else 1
        return LayerTrial(
            Operation(kind, (0,), (shape,), output, shape, parameters), _batch(chance), variant=variant
        )

    return draw


def _norm(chance: Random) -> LayerTrial:
    trial = _plain(kinds.BATCH_NORM)(chance)
    small = trial.batch * prod(trial.operation.output_shape[2:]) < 2  # nothing to take a variance of
    return LayerTrial(trial.operation, 2, trial.stages) if small else trial


def _add(chance: Random) -> LayerTrial:
    shape = _image_shape(chance)
    output = 0 if chance.random() < 0.5 else 2
    return LayerTrial(Operation(kinds.ADD, (0, 1), (shape, shape), output, shape), _batch(chance))


def _gate(chance: Random) -> LayerTrial:
    """Squeeze and excite: a map times one number per channel."""
    shape = _image_shape(chance)
    gate = (1, shape[1], 1, 1)
    return LayerTrial(
        Operation(kinds.ACTIVATION, (0, 1), (gate, shape), 2, shape), _batch(chance), variant="mul"
    )


def _concatenate(chance: Random) -> LayerTrial:
    size, parts = _size(chance), chance.choice((2, 2, 3, 4))
    channels = [_channels(chance, 8, 512) for _ in range(parts)]
    shapes = tuple((1, count, size, size) for count in channels)
    operation = Operation(
        kinds.CONCATENATE, tuple(range(parts)), shapes, parts, (1, sum(channels), size, size)
    )
    return LayerTrial(operation, _batch(chance))


def _pool(kind: str) -> Draw:
    def draw(chance: Random) -> LayerTrial:
        channels, size = _channels(chance), _size(chance, 4, 112)
        window, stride = chance.choice(((3, 2), (3, 2), (2, 2), (3, 1)))
        out = (size + 2 * (window // 2) - window) // stride + 1 if window == 3 else size // 2
        shapes = ((1, channels, size, size), (1, channels, out, out))
        return LayerTrial(
            Operation(kind, (0,), shapes[:1], 1, shapes[1]), _batch(chance), variant=f"{window} {stride}"
        )

    return draw


def _mean(chance: Random) -> LayerTrial:
    """The pool to one number per channel."""
    shape = _image_shape(chance)
    operation = Operation(kinds.AVERAGE_POOL, (0,), (shape,), 1, (*shape[:2], 1, 1))
    return LayerTrial(operation, _batch(chance), variant="adaptive")


def _linear(chance: Random) -> LayerTrial:
    inside, outside = _channels(chance, 16, 2048), _channels(chance, 10, 2048)
    operation = Operation(kinds.LINEAR, (0,), ((1, inside),), 1, (1, outside), (inside * outside, outside))
    return LayerTrial(operation, _batch(chance))


def _update(kind: str) -> Draw:
    def draw(chance: Random) -> LayerTrial:
        size = max(1, round(exp(chance.uniform(log(8), log(3e6)))))
        return LayerTrial(Operation(kind, (), (), 0, (size,), (size,)), 1, (UPDATE,))

    return draw


def _loss(chance: Random) -> LayerTrial:
    classes = chance.choice((10, 100, 1000))
    operation = Operation(kinds.STEP, (0,), ((1, classes),), 1, (1,))
    return LayerTrial(operation, _batch(chance), (TRAINING, INFERENCE))


_ROUND: tuple[tuple[Draw, int], ...] = (
    (_pointwise, 14),
    (_three, 12),
    (_three_strided, 5),
    (_pointwise_strided, 4),
    (_large_window, 3),
    (_depthwise, 7),
    (_grouped, 7),
    (_first, 4),
    (_norm, 5),
    (_plain(kinds.RELU, "relu", in_place=0.8), 4),
    (_plain(kinds.CLAMP_IN_PLACE, "relu6", in_place=1.0), 3),
    (_plain(kinds.ACTIVATION, "silu", "hardswish", "sigmoid", in_place=0.3), 3),
    (_add, 3),
    (_gate, 3),
    (_concatenate, 3),
    (_pool(kinds.MAX_POOL), 3),
    (_pool(kinds.AVERAGE_POOL), 1),
    (_mean, 3),
    (_linear, 3),
    (_plain(kinds.DROPOUT), 1),
    (_update(kinds.PARAMETER), 3),
    (_update(kinds.ADAM), 2),
    (_loss, 1),
    *DETECTION,
)
