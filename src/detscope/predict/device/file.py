"""Device models on disk: JSON; a forest inside it as skops writes it. Loading never runs code.

Version history:
1 - stage, method, targets (near, far, widths, reach), fingerprint, rows, networks, limit_bytes.
2 - layer_rows and notes; predictors by layers; a reach without places: no whole network was measured.
    Later with classes of detectors' operators, of layers that run forward alone and of Adam's update: a file
    without them is read and answers as before, and who does not know them passes over them.

What comes from elsewhere is checked before it is asked: finite, of one width, without circles.
"""

from __future__ import annotations

import base64
import json
import math
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import msgspec
import numpy as np

from detscope.errors import InputError
from detscope.limits import read_limit, require_within
from detscope.predict.device.model import STAGES, DeviceModel
from detscope.predict.layers import kinds
from detscope.predict.layers.graph import Convolution, LayerGraph, Operation, Shape
from detscope.predict.layers.model import LayerModel
from detscope.predict.memory.model import MemoryModel
from detscope.predict.models.choice import NO_REACH, Predictor, Reach, TargetModel
from detscope.predict.models.methods import TARGETS, HybridModel
from detscope.predict.models.older import INFERENCE_FEATURES, TRAINING_FEATURES, TreesModel
from detscope.predict.models.physical import PhysicalModel
from detscope.predict.models.residual import SmoothResidual
from detscope.predict.samples import StepCase
from detscope.runs.atomic import write_text

FORMAT = "detscope device model"
VERSION = 2
_READABLE = (1, 2)
_AGAIN = "fit it again: detscope fit"
_LARGEST = 1e18  # of any number: more bytes, milliseconds or rows than there are; stands for infinity
_PLAIN_KINDS = {"physical": PhysicalModel, "layers": LayerModel, "memory": MemoryModel}
_FOREST_TYPES = ["sklearn.tree._tree.Tree"]  # arrays; what else skops trusts by itself
_TRIED_BATCHES = (1, 64)


def save_model(model: DeviceModel, path: Path) -> None:
    """Write a model whole or not at all."""
    targets = {}
    for name, target in model.targets.items():
        plain = {
            **vars(target),
            "near": _to_plain(target.near),
            "far": None if target.far is target.near else _to_plain(target.far),
            "reach": _numbers_to_plain(target.reach),
        }
        targets[name] = {key: _bound_number(value) for key, value in plain.items()}
    whole = {"format": FORMAT, "version": VERSION, **vars(model), "targets": targets}
    write_text(path, json.dumps(whole, allow_nan=False))


def load_model(path: Path) -> DeviceModel:
    """Read a model; InputError with one line for anything that is not one."""
    plain = _read_plain(path)
    try:
        waiting: list[Any] = [plain]
        while waiting:  # numbers that nothing can have, wherever they stand: JSON knows 1e400 and NaN
            value = waiting.pop()
            if isinstance(value, dict | list):
                waiting.extend(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
                raise ValueError(f"a number is {value!s:.20}")
        strange = plain["targets"].keys() - TARGETS.keys()
        if strange or plain["stage"] not in STAGES:
            raise ValueError(f"{strange or plain['stage']!s:.40} is unknown")
        limit_bytes = plain["limit_bytes"]
        return DeviceModel(
            str(plain["stage"]),
            str(plain["method"]),
            {name: _target_from_plain(target, path) for name, target in plain["targets"].items()},
            str(plain["fingerprint"]),
            int(plain["rows"]),
            tuple(str(name) for name in plain["networks"]),
            None if limit_bytes is None else float(limit_bytes),
            int(plain.get("layer_rows", 0)),
            tuple(str(note) for note in plain.get("notes", ())),
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        raise InputError(f"{path} is damaged: {type(error).__name__} {error!s:.80}", _AGAIN) from error


def _read_plain(path: Path) -> dict[str, Any]:
    try:
        require_within("device_model_bytes", path.stat().st_size, f"{path}")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", _AGAIN) from error
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise InputError(f"{path} is a pickle, and pickles are never opened: they can run code", _AGAIN)
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        if data.lstrip()[:1] == b"{":
            raise InputError(f"{path} is damaged: {error!s:.80}", _AGAIN) from error
        raise InputError(f"{path} is not a device model", _AGAIN) from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise InputError(f"{path} is not a device model", _AGAIN)
    if plain.get("version") not in _READABLE:
        raise InputError(
            f"{path} is a device model of version {plain.get('version')!s:.20},"
            f" this detscope reads {' and '.join(map(str, _READABLE))}",
            _AGAIN,
        )
    return plain


def _target_from_plain(plain: dict[str, Any], path: Path) -> TargetModel:
    reach = _numbers_from_plain(plain["reach"], Reach)
    if reach.places.size:  # places are told by the older features: all 56, each with a centre and a scale
        width = (TRAINING_FEATURES,)
        if not reach.centre.shape == reach.scale.shape == reach.places.shape[1:] == width or not (
            (reach.scale > 0).all()
        ):
            raise ValueError(f"its reach is not of {TRAINING_FEATURES} features")
    else:
        reach = NO_REACH
    near = _from_plain(plain["near"], path)
    errors = {
        str(kind): {str(name): float(value) for name, value in found.items()}
        for kind, found in plain["errors"].items()
    }
    target = TargetModel(
        near,
        near if plain["far"] is None else _from_plain(plain["far"], path),
        str(plain["near_name"]),
        str(plain["far_name"]),
        _read_width(plain["near_width"]),
        _read_width(plain["far_width"]),
        reach,
        errors,
        None if plain.get("beside_width") is None else _read_width(plain["beside_width"]),
    )
    # a small network is asked about: parts of different widths cannot answer
    cases = [StepCase(_make_small_network(), batch) for batch in _TRIED_BATCHES]
    with np.errstate(all="ignore"):
        for predictor in (target.near, target.far):
            if predictor.predict(cases).shape != (len(cases),):
                raise ValueError("it gives other answers than one per question")
        target.estimate_cases(cases)
        target.reach.find_outside(cases[0])
    return target


def _to_plain(model: Predictor) -> dict[str, Any]:
    if isinstance(model, TreesModel):
        from skops.io import dumps  # type: ignore[import-untyped]

        forest = base64.b64encode(dumps(model.forest)).decode("ascii")
        return {"kind": "trees", "training": model.training, "forest": forest}
    if isinstance(model, HybridModel):
        inner = "layers" if isinstance(model.physical, LayerModel) else "physical"
        values = {inner: model.physical, "residual": model.residual}
        return {"kind": "hybrid", "values": _numbers_to_plain(values)}
    kind = next((kind for kind, made in _PLAIN_KINDS.items() if isinstance(model, made)), None)
    if kind is None:
        raise TypeError(type(model).__name__)
    return {"kind": kind, "values": _numbers_to_plain(model)}


def _from_plain(plain: dict[str, Any], path: Path) -> Predictor:
    if plain["kind"] == "trees":
        training = bool(plain["training"])
        return TreesModel(
            _read_forest(base64.b64decode(plain["forest"], validate=True), training, path), training
        )
    values = plain["values"]
    if plain["kind"] == "hybrid":
        inner = "layers" if "layers" in values else "physical"
        physical: Any = _numbers_from_plain(values[inner], _PLAIN_KINDS[inner])
        return HybridModel(physical, _numbers_from_plain(values["residual"], SmoothResidual))
    found: Predictor = _numbers_from_plain(values, _PLAIN_KINDS[plain["kind"]])
    return found


def _numbers_to_plain(model: Any) -> Any:
    """Dataclasses of numbers, arrays and one another, as JSON holds them."""
    return _bound_number(msgspec.to_builtins(model, enc_hook=lambda array: array.tolist()))


def _numbers_from_plain(plain: Any, kind: type[Any]) -> Any:
    return msgspec.convert(
        plain, kind, strict=False, dec_hook=lambda _, values: np.array(values, dtype=float)
    )


def _bound_number(value: Any) -> Any:
    """JSON has no infinity: no ceiling and no known width are numbers larger than any that occurs."""
    if isinstance(value, dict):
        return {key: _bound_number(item) for key, item in value.items()}
    return _LARGEST if isinstance(value, float) and math.isinf(value) else value


def _read_width(value: Any) -> float:
    return math.inf if float(value) >= _LARGEST else float(value)


def _read_forest(data: bytes, training: bool, path: Path) -> Any:
    """Only what a forest is made of is built; any other type ends the loading."""
    from sklearn.ensemble import ExtraTreesRegressor  # type: ignore[import-untyped]
    from skops.io import get_untrusted_types, loads

    try:
        with ZipFile(BytesIO(data)) as opened:  # it is packed: what it unpacks to is held in memory
            if sum(member.file_size for member in opened.infolist()) > read_limit("device_model_bytes"):
                raise ValueError("its forest unpacks to more than a device model may have")
        strange = [name for name in get_untrusted_types(data=data) if name not in _FOREST_TYPES]
        if strange:
            raise InputError(f"{path} holds {strange[0]}, which no forest has: it is not opened", _AGAIN)
        forest = loads(data, trusted=_FOREST_TYPES)
        if not isinstance(forest, ExtraTreesRegressor):
            raise InputError(f"{path} holds a {type(forest).__name__} where a forest should be", _AGAIN)
        _check_forest(forest, TRAINING_FEATURES if training else INFERENCE_FEATURES)
    except InputError:
        raise
    except Exception as error:  # skops and scikit-learn name no error for what is damaged
        raise ValueError(f"its forest cannot be read: {error!s:.60}") from error
    return forest


def _check_forest(forest: Any, features: int) -> None:
    """Compiled code follows a tree's numbers without looking: they must lead on, to the end of the tree."""
    if forest.n_features_in_ != features or forest.n_outputs_ != 1:
        raise ValueError(f"its forest is not of {features} features and one answer")
    forest.n_jobs = None
    for tree in (estimator.tree_ for estimator in forest.estimators_):
        left, right, own = tree.children_left, tree.children_right, np.arange(tree.node_count)
        inner = left != -1
        if (inner != (right != -1)).any():
            raise ValueError("a tree of its forest has half a fork")
        for children in (left[inner], right[inner]):
            # a child stands behind its parent, as they are written: so no way leads back
            if ((children <= own[inner]) | (children >= tree.node_count)).any():
                raise ValueError("a tree of its forest leads outside of itself or back")
        asked = tree.feature[inner]
        if ((asked < 0) | (asked >= features)).any() or tree.n_features != features:
            raise ValueError("a tree of its forest asks for features that do not exist")
        if tree.n_outputs != 1 or not np.isfinite(tree.value).all():
            raise ValueError("a tree of its forest gives no number")
    if forest.predict(np.zeros((1, features))).shape != (1,):
        raise ValueError("its forest gives no answer")


def _make_small_network() -> LayerGraph:
    image, middle, made = (1, 3, 32, 32), (1, 16, 32, 32), (1, 10)

    def convolve(source: int, given: Shape, kernel: int) -> Operation:
        layer = Convolution(given[1], 16, (kernel, kernel), padding=(kernel // 2, kernel // 2))
        weights = (given[1] * 16 * kernel**2,)
        return Operation(kinds.CONVOLUTION, (source,), (given,), source + 1, middle, weights, layer)

    return LayerGraph(
        "small",
        (
            convolve(0, image, 3),
            Operation(kinds.RELU, (1,), (middle,), 1, middle),
            convolve(1, middle, 1),
            Operation(kinds.LINEAR, (2,), (middle,), 3, made, (163_840, 10)),
        ),
    )
