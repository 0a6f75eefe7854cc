"""The older toolflow's method, unchanged: 300 extremely randomised trees on 56 (inference: 15) features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.predict.layers.graph import LayerGraph
from detscope.predict.models.older import inference_features, training_features
from detscope.predict.samples import Case, Sample

Array = npt.NDArray[np.float64]
TREES = 300


@lru_cache(maxsize=20000)
def _features(graph: LayerGraph, batch: int, training: bool) -> Array:
    return training_features(graph, batch) if training else inference_features(graph, batch)


def older_matrix(cases: Sequence[Case], *, training: bool = True) -> Array:
    """One row of the older features per case."""
    return np.array([_features(case.graph, case.batch, training) for case in cases])


@dataclass(frozen=True)
class TreesModel:
    """A fitted forest; `forest` is scikit-learn's."""

    forest: Any
    training: bool = True

    def predict(self, cases: Sequence[Case]) -> Array:
        """The target of each case."""
        return np.asarray(self.forest.predict(older_matrix(cases, training=self.training)))


def fit_trees(
    samples: Sequence[Sample], target: str, *, training: bool = True, seed: int = 0, count: int = TREES
) -> TreesModel:
    """ExtraTreesRegressor(300), otherwise its defaults; the seed is fixed."""
    from sklearn.ensemble import ExtraTreesRegressor  # type: ignore[import-untyped]

    forest = ExtraTreesRegressor(n_estimators=count, random_state=seed)
    forest.fit(
        older_matrix([one.case for one in samples], training=training),
        np.array([one.value(target) for one in samples], dtype=float),
    )
    return TreesModel(forest, training)
