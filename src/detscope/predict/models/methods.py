"""The methods by name: physical, hybrid, trees (the older one); `auto` chooses among them.

Where single layers were measured, latency by physics is their sum, called `layers` in what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from detscope.errors import UsageError
from detscope.predict.layers.model import LayerModel, choose_layers
from detscope.predict.layers.table import LayerTable
from detscope.predict.memory.model import fit_memory
from detscope.predict.models.choice import Fit, TargetModel, fit_target
from detscope.predict.models.older import TREES, collect_older_features, fit_trees
from detscope.predict.models.physical import PhysicalModel, choose_physical, find_fair_places
from detscope.predict.models.residual import SmoothResidual, fit_residuals
from detscope.predict.samples import Array, StepCase, StepSample, keep_measured


@dataclass(frozen=True)
class HybridModel:
    """What physics says, times what it was off by on similar networks."""

    physical: PhysicalModel | LayerModel
    residual: SmoothResidual

    def predict(self, cases: Sequence[StepCase]) -> Array:
        """Milliseconds of each case."""
        correction = self.residual.predict(collect_latency_features(self.physical, cases))
        return np.asarray(self.physical.predict(cases) * np.exp(correction))


def collect_latency_features(physical: PhysicalModel | LayerModel, cases: Sequence[StepCase]) -> Array:
    """The older features (as logarithms) and what the physical model makes of the case."""
    device, host = physical.split_parts(cases)
    device, host = np.maximum(device, 1e-6), np.maximum(host, 1e-6)
    older = np.log(collect_older_features(cases, training=physical.training) + 1.0)
    parameters = np.log([sum(case.graph.parameter_sizes) + 1.0 for case in cases])
    batches = np.log([case.batch for case in cases])
    shares = np.array([list(physical.share_by_class(case).values()) for case in cases]) / device[:, None]
    physics = np.column_stack(
        [np.log(device), np.log(host), np.log(device / host), batches, parameters, shares]
    )
    return np.hstack([older, physics])


def fit_hybrid(samples: Sequence[StepSample], physical: PhysicalModel | LayerModel) -> HybridModel:
    """Learn what a physical model leaves over."""
    cases = [one.case for one in samples]
    truth = np.array([one.latency_ms for one in samples], dtype=float)
    left_over = np.log(truth / np.maximum(physical.predict(cases), 1e-6))
    return HybridModel(physical, fit_residuals(collect_latency_features(physical, cases), [left_over])[0])


_TREES_IN_TRIALS = 25  # enough to compare methods by
METHODS = ("auto", "trees", "physical", "hybrid")
LAYERS = "layers"  # what `physical` is called where single layers were measured
TARGETS = {"memory": "process_bytes", "latency": "latency_ms"}


@lru_cache(maxsize=64)
def _chosen_physical(samples: tuple[StepSample, ...], training: bool) -> PhysicalModel:
    return choose_physical(samples, training=training)


def _physical_latency(samples: Sequence[StepSample], *, training: bool) -> PhysicalModel:
    return _chosen_physical(tuple(samples), training)


def _hybrid_latency(samples: Sequence[StepSample], *, training: bool) -> HybridModel:
    return fit_hybrid(samples, _chosen_physical(tuple(samples), training))


@lru_cache(maxsize=64)
def _chosen_layers(samples: tuple[StepSample, ...], table: LayerTable) -> LayerModel:
    return choose_layers(table, samples)


def _layers_latency(samples: Sequence[StepSample], *, table: LayerTable) -> LayerModel:
    return _chosen_layers(tuple(samples), table)


def _hybrid_of_layers(samples: Sequence[StepSample], *, table: LayerTable) -> HybridModel:
    return fit_hybrid(samples, _chosen_layers(tuple(samples), table))


def list_methods(
    target: str, *, training: bool = True, trees_count: int = TREES, table: LayerTable | None = None
) -> dict[str, Fit]:
    """Ways to fit a target ("memory" or "latency") by the names of their methods; the first is preferred."""
    trees: Fit = partial(fit_trees, target=TARGETS[target], training=training, count=trees_count)
    if target == "latency" and table is not None:
        return {
            LAYERS: partial(_layers_latency, table=table),
            "hybrid": partial(_hybrid_of_layers, table=table),
            "trees": trees,
        }
    if target == "latency":
        return {
            "physical": partial(_physical_latency, training=training),
            "hybrid": partial(_hybrid_latency, training=training),
            "trees": trees,
        }
    return {
        "physical": partial(fit_memory, hybrid=False),
        "hybrid": partial(fit_memory, hybrid=True),
        "trees": trees,
    }


def fit_method(
    samples: Sequence[StepSample],
    target: str,
    method: str = "auto",
    *,
    training: bool = True,
    table: LayerTable | None = None,
) -> TargetModel:
    """A model of one target by one method, or by the best of all; `table`: layers that were measured."""
    if method not in METHODS:
        raise UsageError(f"no method {method!r}", f"there are: {', '.join(METHODS)}")
    if target == "memory" and not training and method != "trees":
        raise UsageError("memory of inference is not simulated yet", "--method trees, or --stage training")
    every = list_methods(target, training=training, table=table)
    trials = list_methods(target, training=training, trees_count=_TREES_IN_TRIALS, table=table)
    asked = LAYERS if method == "physical" and LAYERS in every else method
    names = list(every) if method == "auto" else [asked]
    known = keep_measured(samples, TARGETS[target])
    return fit_target(
        known,
        TARGETS[target],
        {name: every[name] for name in names},
        {name: trials[name] for name in names},
        # memory does not depend on which kernels run, and a microbench has seen them all: then every network
        # says something about the others
        find_fair_places(known) if target == "latency" and table is None else range(len(known)),
    )
