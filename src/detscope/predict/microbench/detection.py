"""What detectors run besides convolutions: draws of their operators for the rounds of a microbench.

Feature maps come as in `microbench_design`, boxes as rows of four numbers, from a few to tens of thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from random import Random

from detscope.predict.layers.graph import Operation
from detscope.predict.layers.times import (
    ARITHMETIC,
    BILINEAR,
    GROUP_NORM,
    INDEX,
    INFERENCE,
    LOSS,
    NEAREST,
    NMS,
    REDUCTION,
    ROI_ALIGN,
    SMALL,
    SORTING,
    TRAINING,
    VIEW,
)
from detscope.predict.microbench.trial import BATCHES, SIZES, Trial

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


def roi_align(chance: Random) -> Trial:
    """Boxes of one level's map, five, seven or fourteen places wide."""
    while True:
        batch, image, window = chance.choice(_FEW_BATCHES), _map(chance, 8), chance.choice((5, 7, 7, 14))
        boxes = _log_uniform(chance, 4, 512)
        shape = (boxes, image[1], window, window)
        operation = Operation(ROI_ALIGN, (0, 1), (image, (boxes, 5)), 2, shape)
        if batch * operation.output_elements <= _ROI_ELEMENTS:
            return Trial(operation, batch, _BOTH)


def nms(chance: Random) -> Trial:
    """Boxes of one image."""
    count = _log_uniform(chance, 20, 4000)
    return Trial(Operation(NMS, (0,), ((count, 4),), 1, (count,)), 1, _FORWARD)


def group_norm(chance: Random) -> Trial:
    """Eight channels to a group, as heads have it."""
    shape = _map(chance)
    operation = Operation(GROUP_NORM, (0,), (shape,), 1, shape, (shape[1], shape[1]))
    return Trial(operation, chance.choice(BATCHES), _BOTH)


def nearest(chance: Random) -> Trial:
    """A level of a pyramid, twice as large."""
    shape = _map(chance)
    larger = (*shape[:2], 2 * shape[2], 2 * shape[3])
    return Trial(Operation(NEAREST, (0,), (shape,), 1, larger), chance.choice(BATCHES), _BOTH)


def bilinear(chance: Random) -> Trial:
    """An image made to fit, or masks."""
    channels, size = chance.choice((1, 3, 3, 17)), _log_uniform(chance, 14, 400)
    made = max(1, round(size * chance.uniform(0.5, 2.0)))
    shapes = ((1, channels, size, size), (1, channels, made, made))
    return Trial(Operation(BILINEAR, (0,), shapes[:1], 1, shapes[1]), chance.choice(_FEW_BATCHES), _BOTH)


def arithmetic(chance: Random) -> Trial:
    """Boxes or maps, element by element."""
    shape = _boxes(chance) if chance.random() < 0.6 else _map(chance)
    variant, inputs = chance.choice((("sub", 2), ("div", 2), ("exp", 1), ("clamp", 1), ("maximum", 2)))
    operation = Operation(ARITHMETIC, tuple(range(inputs)), (shape,) * inputs, inputs, shape)
    return Trial(operation, chance.choice(_FEW_BATCHES), _BOTH, variant)


def reduction(chance: Random) -> Trial:
    """To one number, or to one per row."""
    shape = _boxes(chance)
    variant, output = chance.choice((("sum", (1,)), ("max", shape[:1])))
    return Trial(Operation(REDUCTION, (0,), (shape,), 1, output), chance.choice(_FEW_BATCHES), _BOTH, variant)


def index(chance: Random) -> Trial:
    """Some of the boxes."""
    shape = _boxes(chance)
    rows = max(1, round(shape[0] * exp(chance.uniform(log(0.01), 0.0))))
    return Trial(Operation(INDEX, (0,), (shape,), 1, (rows, shape[1])), chance.choice(_FEW_BATCHES), _BOTH)


def sorting(chance: Random) -> Trial:
    """Scores of one image, all of them or the best."""
    count = _log_uniform(chance, 100, 100_000)
    variant, kept = chance.choice((("sort", count), ("topk", max(1, min(count, 1000) // 2))))
    return Trial(Operation(SORTING, (0,), ((count,),), 1, (kept,)), 1, _FORWARD, variant)


def loss(chance: Random) -> Trial:
    """Of boxes or of class scores: summed up, or one for each (focal losses weigh them)."""
    shape, variant = _boxes(chance), chance.choice(("smooth_l1", "cross_entropy"))
    output = chance.choice(((1,), shape))
    return Trial(Operation(LOSS, (0,), (shape,), 1, output), chance.choice(_FEW_BATCHES), _BOTH, variant)


def views(_: Random) -> Trial:
    """Other shapes of the same memory: the time of one of several."""
    return Trial(Operation(VIEW, (), (), 0, (1,)), 1, _FORWARD, parts=VIEWS)


def small(chance: Random) -> Trial:
    """What is done with boxes and targets where no gradient is asked for: the time of one of several."""
    boxes = _log_uniform(chance, 5, 50_000)
    size = max(1, round(boxes * SMALL_ELEMENTS / SMALL_CALLS))
    return Trial(Operation(SMALL, (), (), 0, (size,)), 1, _FORWARD, str(boxes), parts=SMALL_CALLS)


DETECTION: tuple[tuple[Callable[[Random], Trial], int], ...] = (
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
    (views, 1),
    (small, 3),
)
