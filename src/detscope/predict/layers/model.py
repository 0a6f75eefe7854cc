"""Latency layer by layer: what single layers took, summed over a network.

From a microbench alone every kernel class counts as it was measured. Where whole steps are known too, each
class gets a factor, drawn towards one factor that all share, and that one towards 1; how strongly is chosen
by leaving out networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from detscope.predict.layers.calls import list_stand_ins
from detscope.predict.layers.table import LayerTable
from detscope.predict.models.choice import average_groups, group_samples, leave_out
from detscope.predict.models.residual import solve_least_squares
from detscope.predict.samples import Array, StepCase, StepSample

PULLS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_COMMON = "all"  # the factor that all classes share
_COMMON_PULL = 0.1  # of the others' pull: a few whole steps tell it well
_EDGE = 0.1  # of a logarithm: errors beyond it weigh as their size, not its square


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
        """Milliseconds of each case."""
        return np.array([sum(self.sum_by_class(case).values()) for case in cases])

    def split_parts(self, cases: Sequence[StepCase]) -> tuple[Array, Array]:
        """The device's and the host's milliseconds; the host's are in every layer's own."""
        return self.predict(cases), np.zeros(len(cases))

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
