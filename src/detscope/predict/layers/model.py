"""Latency layer by layer: what single layers took, summed over a network.

From measured layers to the time of any layer: a roofline per kernel class and what it leaves over. From a
microbench alone every kernel class counts as it was measured. Where whole steps are known too, each class
gets a factor, drawn towards one factor that all share, and that one towards 1; how strongly is chosen by
leaving out networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median

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
from detscope.predict.models.choice import average_groups, group_samples, leave_out
from detscope.predict.models.residual import (
    LayerResidual,
    fit_layer_residual,
    solve_least_squares,
    solve_non_negative,
)
from detscope.predict.samples import Array, StepCase, StepSample

PULLS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_COMMON = "all"  # the factor that all classes share
_COMMON_PULL = 0.1  # of the others' pull: a few whole steps tell it well
_EDGE = 0.1  # of a logarithm: errors beyond it weigh as their size, not its square
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
    host_ms: float = 0.0  # of a device's host per call, which hardly depends on its size; 0 on a processor

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

    def time_host(self, calls: Sequence[LayerCall]) -> float:
        """Milliseconds in which a device's host queues all of these."""
        return sum(call.count * self.classes[self.find_class(call)].host_ms for call in calls)

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
    launches = [row.host_ms for row in rows if row.host_ms is not None]
    host_ms = median(launches) if launches else 0.0
    found = ClassTimes(tuple(coefficients.tolist()), None, len(rows), None, host_ms)
    if name in _ROOFLINE_ALONE or len(rows) < _ROWS_FOR_RESIDUAL:
        return found
    residual, left_out = fit_layer_residual(
        _collect_features(calls, name), np.log(truth / found.apply_roofline(terms))
    )
    return replace(found, residual=residual, left_out_error=float(np.median(np.abs(left_out))))


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


@dataclass(frozen=True)
class LayerModel:
    """Measured layers and, where whole steps were seen, a factor per class."""

    table: LayerTable
    scales: dict[str, float] = field(default_factory=dict)
    pull: float | None = None  # None: no whole step was seen

    @property
    def training(self) -> bool:
        """Of training steps, or of inferences."""
        return self.table.training

    def sum_by_class(self, case: StepCase) -> dict[str, float]:
        """Milliseconds by kernel class."""
        found = _sum_classes(self.table, case)
        return {name: ms * self.factor_of(name) for name, ms in found.items()}

    def factor_of(self, name: str) -> float:
        """Of a class; one that whole steps never showed has what all share."""
        common = self.scales.get(_COMMON, 1.0)
        return next((self.scales[one] for one in list_stand_ins(name) if one in self.scales), common)

    def predict(self, cases: Sequence[StepCase]) -> Array:
        """Milliseconds of each case: of the device, or of its host where that is slower."""
        return np.maximum(*self.split_parts(cases))

    def split_parts(self, cases: Sequence[StepCase]) -> tuple[Array, Array]:
        """The device's and the host's milliseconds; a processor's are in every layer's own."""
        device = [sum(self.sum_by_class(case).values()) for case in cases]
        host = [self.table.time_host(self.table.list_case_calls(case)) for case in cases]
        return np.array(device), np.array(host)

    def share_by_class(self, case: StepCase) -> dict[str, float]:
        """Milliseconds of every class that the model knows; what runs forward alone is in its class."""
        found = {list_stand_ins(name)[1]: 0.0 for name in self.table.classes}
        for name, ms in self.sum_by_class(case).items():
            found[list_stand_ins(name)[1]] += ms
        return found

    def sum_by_stage(self, case: StepCase) -> dict[str, float]:
        """Milliseconds by the stages of a network."""
        calls = self.table.list_case_calls(case)
        names, times = self.table.time_calls(calls)
        found: dict[str, float] = {}
        for call, name, ms in zip(calls, names, times.tolist(), strict=True):
            found[call.operation.stage] = found.get(call.operation.stage, 0.0) + ms * self.factor_of(name)
        return found


@lru_cache(maxsize=20000)
def _sum_classes(table: LayerTable, case: StepCase) -> dict[str, float]:
    names, times = table.time_calls(table.list_case_calls(case))
    found: dict[str, float] = {}
    for name, ms in zip(names, times.tolist(), strict=True):
        found[name] = found.get(name, 0.0) + ms
    return found


def fit_scales(table: LayerTable, samples: Sequence[StepSample], pull: float) -> LayerModel:
    """Factors of the classes for measured steps; every network weighs the same."""
    costs = [_sum_classes(table, one.case) for one in samples]
    names = sorted({name for cost in costs for name in cost})
    matrix = np.array([[cost.get(name, 0.0) for name in names] for cost in costs])
    truth = np.log(np.array([one.latency_ms for one in samples], dtype=float))
    sizes = Counter(one.network for one in samples)
    weights = np.array([1 / sizes[one.network] / len(sizes) for one in samples]) ** 0.5

    def left_over(logs: Array) -> Array:
        errors = np.log(matrix @ np.exp(logs[1:])) - truth
        size = np.abs(errors)
        robust = np.sign(errors) * np.sqrt(np.where(size < _EDGE, size**2, 2 * _EDGE * size - _EDGE**2))
        pulled = np.sqrt(pull / len(names)) * (logs[1:] - logs[0])
        return np.concatenate([weights * robust, pulled, [np.sqrt(_COMMON_PULL * pull) * logs[0]]])

    found = np.exp(solve_least_squares(left_over, np.zeros(len(names) + 1))).tolist()
    return LayerModel(table, dict(zip([_COMMON, *names], found, strict=True)), pull)


def choose_layers(table: LayerTable, samples: Sequence[StepSample]) -> LayerModel:
    """The pull by leaving out one network after the other (with one network: one level)."""
    known = [one for one in samples if one.latency_ms]
    if not known:
        return LayerModel(table)
    groups = group_samples(known)
    if len(set(groups)) == 1:
        return fit_scales(table, known, PULLS[-1])

    def judge(pull: float) -> float:
        return average_groups(
            leave_out(known, groups, "latency_ms", lambda some: fit_scales(table, some, pull)), groups
        )

    return fit_scales(table, known, min(PULLS, key=judge))
