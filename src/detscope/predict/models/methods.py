"""The methods by name: physical, hybrid, trees (the older one); `auto` chooses among them.

Where single layers were measured, latency by physics is their sum, called `layers` in what is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from detscope.errors import UsageError
from detscope.predict.layers.model import LayerModel, LayerTable, choose_layers
from detscope.predict.memory.model import fit_memory
from detscope.predict.models.choice import Fit, Predictor, TargetModel, fit_target
from detscope.predict.models.older import TREES, collect_older_features, fit_trees
from detscope.predict.models.physical import PhysicalModel, choose_physical, find_fair_places
from detscope.predict.models.residual import SmoothResidual, fit_residuals
from detscope.predict.samples import Array, StepCase, StepSample, keep_measured

_TREES_IN_TRIALS = 25  # enough to compare methods by
METHODS = ("auto", "trees", "physical", "hybrid")
LAYERS = "layers"  # what `physical` is called where single layers were measured
TARGETS = {"memory": "process_bytes", "latency": "latency_ms"}


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


def find_physical(*models: Predictor) -> PhysicalModel | LayerModel | None:
    """The physics of the first model that has some; None: all are trees, which know no layers."""
    for model in models:
        physical = model.physical if isinstance(model, HybridModel) else model
        if isinstance(physical, PhysicalModel | LayerModel):
            return physical
    return None


@lru_cache(maxsize=64)
def _choose_physics(
    samples: tuple[StepSample, ...], training: bool, table: LayerTable | None
) -> PhysicalModel | LayerModel:
    """Once for the method itself and for the hybrid that corrects it."""
    return choose_physical(samples, training=training) if table is None else choose_layers(table, samples)


def _fit_latency(
    samples: Sequence[StepSample], *, hybrid: bool, training: bool, table: LayerTable | None
) -> PhysicalModel | LayerModel | HybridModel:
    physics = _choose_physics(tuple(samples), training, table)
    return fit_hybrid(samples, physics) if hybrid else physics


def list_methods(
    target: str, *, training: bool = True, trees_count: int = TREES, table: LayerTable | None = None
) -> dict[str, Fit]:
    """Ways to fit a target ("memory" or "latency") by the names of their methods; the first is preferred."""
    fit: Callable[..., Predictor] = fit_memory
    if target == "latency":
        fit = partial(_fit_latency, training=training, table=table)
    return {
        LAYERS if target == "latency" and table is not None else "physical": partial(fit, hybrid=False),
        "hybrid": partial(fit, hybrid=True),
        "trees": partial(fit_trees, target=TARGETS[target], training=training, count=trees_count),
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
