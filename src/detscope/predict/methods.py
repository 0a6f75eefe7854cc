"""The methods by name: physical, hybrid, trees (the older one); `auto` chooses among them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from detscope.errors import UsageError
from detscope.predict.choice import Fit, TargetModel, fit_target
from detscope.predict.hybrid import HybridModel, fit_hybrid
from detscope.predict.kernels import fairly_left_out
from detscope.predict.memory_model import fit_memory
from detscope.predict.physical import PhysicalModel, choose_physical
from detscope.predict.samples import Sample, with_target
from detscope.predict.trees import TREES, fit_trees

_TREES_IN_TRIALS = 25  # enough to compare methods by
METHODS = ("auto", "trees", "physical", "hybrid")
TARGETS = {"memory": "process_bytes", "latency": "latency_ms"}


@lru_cache(maxsize=64)
def _chosen_physical(samples: tuple[Sample, ...], training: bool) -> PhysicalModel:
    return choose_physical(samples, training=training)


def _physical_latency(samples: Sequence[Sample], *, training: bool) -> PhysicalModel:
    return _chosen_physical(tuple(samples), training)


def _hybrid_latency(samples: Sequence[Sample], *, training: bool) -> HybridModel:
    return fit_hybrid(samples, _chosen_physical(tuple(samples), training))


def methods_for(target: str, *, training: bool = True, trees_count: int = TREES) -> dict[str, Fit]:
    """Ways to fit a target ("memory" or "latency") by the names of their methods."""
    trees: Fit = partial(fit_trees, target=TARGETS[target], training=training, count=trees_count)
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
    samples: Sequence[Sample], target: str, method: str = "auto", *, training: bool = True
) -> TargetModel:
    """A model of one target by one method, or by the best of all of them."""
    if method not in METHODS:
        raise UsageError(f"no method {method!r}", f"there are: {', '.join(METHODS)}")
    if target == "memory" and not training and method != "trees":
        raise UsageError("memory of inference is not simulated yet", "--method trees, or --stage training")
    every = methods_for(target, training=training)
    trials = methods_for(target, training=training, trees_count=_TREES_IN_TRIALS)
    names = list(every) if method == "auto" else [method]
    known = with_target(samples, TARGETS[target])
    return fit_target(
        known,
        TARGETS[target],
        {name: every[name] for name in names},
        {name: trials[name] for name in names},
        # memory does not depend on which kernels run: every network says something about the others
        fairly_left_out(known) if target == "latency" else range(len(known)),
    )
