"""From measured layers to the time of any layer: a roofline per kernel class and what it leaves over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detscope.errors import InputError
from detscope.predict.layers import kinds
from detscope.predict.layers.calls import (
    ACCUMULATION,
    OPTIMIZERS,
    OTHER,
    LayerCall,
    call_features,
    classify_call,
    count_widths,
    list_calls,
    list_stand_ins,
    roofline_terms,
    traffic_terms,
)
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.layers.times import INFERENCE, LAYER_STAGES, TRAINING, LayerTime
from detscope.predict.models.residual import LayerResidual, fit_layer_residual, solve_non_negative
from detscope.predict.samples import Array, StepCase

_ROWS_FOR_RESIDUAL = 8
_SMALLEST_ERROR = 0.05
_ROUNDS = 6
_BY_TRAFFIC = (OTHER, kinds.VIEW, kinds.SMALL)
_TRAFFIC_TERMS = 2
_ROOFLINE_ALONE = (*_BY_TRAFFIC, kinds.NMS)  # no residual


@dataclass(frozen=True, eq=False)
class ClassTimes:
    """Milliseconds per term, and the process over what they leave over."""

    term_ms: tuple[float, ...]
    residual: LayerResidual | None
    rows: int
    left_out_error: float | None  # median; None: too few rows to tell

    def apply_roofline(self, terms: Array) -> Array:
        """Without the correction."""
        return np.asarray(np.maximum(terms @ np.array(self.term_ms), 1e-7))

    def predict(self, terms: Array, features: Array) -> Array:
        """Milliseconds of layers."""
        found = self.apply_roofline(terms)
        if self.residual is not None:
            found = found * np.exp(self.residual.predict(features))
        return np.asarray(found)


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Kernel classes by name, for training or for inference."""

    classes: dict[str, ClassTimes]
    training: bool = True

    def __post_init__(self) -> None:
        """Refuse classes that cannot answer, which a file may hold."""
        if OTHER not in self.classes:
            raise ValueError(f"no class {OTHER!r}")
        for name, one in self.classes.items():
            terms, features = (_TRAFFIC_TERMS, 0) if name in _BY_TRAFFIC else count_widths(name)
            given = features if one.residual is None else len(one.residual.centre)
            if len(one.term_ms) != terms or given != features:
                raise ValueError(f"class {name[:40]!r} has {len(one.term_ms)} terms and {given} features")

    def find_class(self, call: LayerCall) -> str:
        """The class that answers for a layer: its own, one like it, or what was never measured."""
        found = classify_call(call, training=self.training)
        return next((name for name in list_stand_ins(found) if name in self.classes), OTHER)

    def list_case_calls(self, case: StepCase) -> list[LayerCall]:
        """All that a case runs, as far as it counts: a call beside the layers only where it was measured."""
        update = OPTIMIZERS[case.optimizer] if self.knows_update(case.optimizer) else kinds.PARAMETER
        found = list_calls(case.graph, case.batch, training=self.training, update=update)
        return [call for call in found if call.operation.kind not in kinds.BESIDE - set(self.classes)]

    def knows_update(self, optimizer: str) -> bool:
        """Whether an optimizer's update was measured."""
        return OPTIMIZERS[optimizer] in self.classes

    def time_calls(self, calls: Sequence[LayerCall]) -> tuple[list[str], Array]:
        """The class and the time of every layer."""
        names = [self.find_class(call) for call in calls]
        found = np.zeros(len(calls))
        for name in dict.fromkeys(names):
            places = [place for place, one in enumerate(names) if one == name]
            some = [calls[place] for place in places]
            counts = np.array([call.count for call in some])
            found[places] = counts * self.classes[name].predict(
                _collect_terms(some, name), _collect_features(some, name)
            )
        return names, found

    def list_unseen_kinds(self, graph: LayerGraph) -> tuple[str, ...]:
        """Kinds of a network's operations that were never measured."""
        calls = self.list_case_calls(StepCase(graph, 1))
        return tuple(sorted({call.operation.kind for call in calls if self.find_class(call) == OTHER}))


def fit_layers(rows: Sequence[LayerTime], *, training: bool = True) -> LayerTable:
    """A model of every class that was measured, and one for all others."""
    wanted = LAYER_STAGES if training else (INFERENCE,)
    by_class: dict[str, list[LayerTime]] = {}
    for row in (row for row in rows if row.stage in wanted):
        by_class.setdefault(classify_call(_call_of(row), training=training), []).append(row)
        if training and row.stage == INFERENCE and row.operation.kind == kinds.ADD:
            by_class.setdefault(ACCUMULATION, []).append(row)
    unmeasured = [
        row
        for row in rows
        if row.stage == (TRAINING if training else INFERENCE)
        and row.operation.kind
        not in (kinds.CONVOLUTION, kinds.LINEAR, kinds.STEP, kinds.ROI_ALIGN, kinds.SORTING, *kinds.BESIDE)
    ]
    if not unmeasured:
        stage = TRAINING if training else INFERENCE
        raise InputError(f"too few layers were measured for {stage}", "--microbench-seconds 180 is usual")
    classes = {name: _fit_class(some, name) for name, some in sorted(by_class.items())}
    return LayerTable({**classes, OTHER: _fit_class(unmeasured, OTHER)}, training)


def _call_of(row: LayerTime) -> LayerCall:
    return LayerCall(row.operation, row.batch, row.stage)


def _collect_terms(calls: Sequence[LayerCall], name: str) -> Array:
    return np.array([traffic_terms(call) if name in _BY_TRAFFIC else roofline_terms(call) for call in calls])


def _collect_features(calls: Sequence[LayerCall], name: str) -> Array:
    if name in _ROOFLINE_ALONE:  # layers of any kind, whose features are not the same ones
        return np.zeros((len(calls), 0))
    return np.array([call_features(call) for call in calls])


def _fit_class(rows: Sequence[LayerTime], name: str) -> ClassTimes:
    calls = [_call_of(row) for row in rows]
    truth = np.array([row.steady_ms for row in rows])
    terms = _collect_terms(calls, name)
    coefficients = _fit_relative(terms, truth)
    found = ClassTimes(tuple(coefficients.tolist()), None, len(rows), None)
    if name in _ROOFLINE_ALONE or len(rows) < _ROWS_FOR_RESIDUAL:
        return found
    residual, left_out = fit_layer_residual(
        _collect_features(calls, name), np.log(truth / found.apply_roofline(terms))
    )
    return ClassTimes(found.term_ms, residual, len(rows), float(np.median(np.abs(left_out))))


def _fit_relative(terms: Array, truth: Array) -> Array:
    """Non-negative coefficients with small relative errors; large errors weigh as their size alone."""
    relative = terms / truth[:, None]
    scale = np.sqrt((relative**2).mean(axis=0)) + 1e-12
    weights = np.ones(len(truth))
    found = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        found = solve_non_negative(relative / scale * weights[:, None], weights, 20000)
        errors = np.abs(relative / scale @ found - 1)
        weights = 1 / np.sqrt(np.maximum(errors, _SMALLEST_ERROR))
    return np.asarray(found / scale)
