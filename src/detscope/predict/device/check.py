"""What a device model from elsewhere must be before it is asked: finite, of one width, without circles."""

from __future__ import annotations

from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from detscope.limits import limit
from detscope.predict.models.choice import Reach, TargetModel
from detscope.predict.layers.graph import CONVOLUTION, LINEAR, RELU, Convolution, LayerGraph, Operation
from detscope.predict.models.older import INFERENCE_FEATURES, TRAINING_FEATURES
from detscope.predict.samples import Case

Array = npt.NDArray[np.float64]
LARGEST = 1e18  # of any number: more bytes, milliseconds or rows than there are
_TRIED_BATCHES = (1, 64)


def require_plain_numbers(plain: Any) -> None:
    """Refuse numbers that nothing can have, wherever they stand; JSON knows 1e400 and NaN."""
    waiting = [plain]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
            raise ValueError(f"a number is {value!s:.20}")


def require_shapes(reach: Reach) -> None:
    """Places are told by the older features: all 56, each with a centre and a scale."""
    width = TRAINING_FEATURES
    shapes = (reach.centre.shape, reach.scale.shape, reach.places.shape[1:])
    if shapes != ((width,), (width,), (width,)) or not (reach.scale > 0).all():
        raise ValueError(f"its reach is not of {width} features")


def require_small_zip(opened: ZipFile) -> None:
    """A forest is packed: what it unpacks to is held in memory."""
    if sum(member.file_size for member in opened.infolist()) > limit("device_model_bytes"):
        raise ValueError("its forest unpacks to more than a device model may have")


def check_forest(forest: Any, training: bool) -> None:
    """Compiled code follows a tree's numbers without looking: they must lead on, to the end of the tree."""
    features = TRAINING_FEATURES if training else INFERENCE_FEATURES
    if forest.n_features_in_ != features or forest.n_outputs_ != 1:
        raise ValueError(f"its forest is not of {features} features and one answer")
    forest.n_jobs = None
    for estimator in forest.estimators_:
        _check_tree(estimator.tree_, features)
    if forest.predict(np.zeros((1, features))).shape != (1,):
        raise ValueError("its forest gives no answer")


def _check_tree(tree: Any, features: int) -> None:
    left, right, own = tree.children_left, tree.children_right, np.arange(tree.node_count)
    inner = left != -1
    if (inner != (right != -1)).any():
        raise ValueError("a tree of its forest has half a fork")
    for children in (left[inner], right[inner]):
        # a child stands behind its parent, as they are written: so no way leads back
        if ((children <= own[inner]) | (children >= tree.node_count)).any():
            raise ValueError("a tree of its forest leads outside of itself or back")
    if ((tree.feature[inner] < 0) | (tree.feature[inner] >= features)).any() or tree.n_features != features:
        raise ValueError("a tree of its forest asks for features that do not exist")
    if tree.n_outputs != 1 or not np.isfinite(tree.value).all():
        raise ValueError("a tree of its forest gives no number")


def try_target(target: TargetModel) -> None:
    """Ask about a small network: parts of different widths cannot answer."""
    cases = [Case(_small_network(), batch) for batch in _TRIED_BATCHES]
    with np.errstate(all="ignore"):
        for predictor in (target.near, target.far):
            if predictor.predict(cases).shape != (len(cases),):
                raise ValueError("it gives other answers than one per question")
        target.estimate(cases)
        target.reach.outside(cases[0])


def _small_network() -> LayerGraph:
    shapes = ((1, 3, 32, 32), (1, 16, 32, 32), (1, 16, 32, 32), (1, 10))
    return LayerGraph(
        "small",
        (
            _convolution(0, 1, shapes[0], shapes[1], 3),
            Operation(RELU, (1,), (shapes[1],), 1, shapes[1]),
            _convolution(1, 2, shapes[1], shapes[2], 1),
            Operation(LINEAR, (2,), (shapes[2],), 3, shapes[3], (163_840, 10)),
        ),
    )


def _convolution(source: int, output: int, given: Any, made: Any, kernel: int) -> Operation:
    layer = Convolution(given[1], made[1], (kernel, kernel), padding=(kernel // 2, kernel // 2))
    weights = given[1] * made[1] * kernel**2
    return Operation(CONVOLUTION, (source,), (given,), output, made, (weights,), layer)
