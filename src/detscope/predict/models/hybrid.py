"""Physical latency plus a learnt residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.predict.layers.model import LayerModel
from detscope.predict.models.physical import PhysicalModel
from detscope.predict.models.residual import SmoothResidual, fit_residual
from detscope.predict.samples import Case, Sample
from detscope.predict.models.trees import older_matrix

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HybridModel:
    """What physics says, times what it was off by on similar networks."""

    physical: PhysicalModel | LayerModel
    residual: SmoothResidual

    def predict(self, cases: Sequence[Case]) -> Array:
        """Milliseconds of each case."""
        correction = self.residual.predict(latency_features(self.physical, cases))
        return np.asarray(self.physical.predict(cases) * np.exp(correction))

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        kind = "layers" if isinstance(self.physical, LayerModel) else "physical"
        return {kind: self.physical.to_plain(), "residual": self.residual.to_plain()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> HybridModel:
        """Back from JSON."""
        physical: PhysicalModel | LayerModel = (
            LayerModel.from_plain(plain["layers"])
            if "layers" in plain
            else PhysicalModel.from_plain(plain["physical"])
        )
        return cls(physical, SmoothResidual.from_plain(plain["residual"]))


def latency_features(physical: PhysicalModel | LayerModel, cases: Sequence[Case]) -> Array:
    """The older features (as logarithms) and what the physical model makes of the case."""
    device, host = physical.parts(cases)
    device, host = np.maximum(device, 1e-6), np.maximum(host, 1e-6)
    older = np.log(older_matrix(cases, training=physical.training) + 1.0)
    parameters = np.log([sum(case.graph.parameters) + 1.0 for case in cases])
    batches = np.log([case.batch for case in cases])
    shares = np.array([list(physical.shares(case).values()) for case in cases]) / device[:, None]
    physics = np.column_stack(
        [np.log(device), np.log(host), np.log(device / host), batches, parameters, shares]
    )
    return np.hstack([older, physics])


def fit_hybrid(samples: Sequence[Sample], physical: PhysicalModel | LayerModel) -> HybridModel:
    """Learn what a physical model leaves over."""
    cases = [one.case for one in samples]
    truth = np.array([one.latency_ms for one in samples], dtype=float)
    left_over = np.log(truth / np.maximum(physical.predict(cases), 1e-6))
    return HybridModel(physical, fit_residual(latency_features(physical, cases), left_over))
