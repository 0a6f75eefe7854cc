"""A device's model: what was fitted for it, from which data, and the limit of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from detscope.errors import InputError
from detscope.predict.layers.model import LayerModel
from detscope.predict.layers.table import fit_layers
from detscope.predict.layers.times import LayerTime, sum_layer_times
from detscope.predict.memory.model import MemoryModel, keep_outcomes, learn_limit
from detscope.predict.models.choice import NO_REACH, TargetModel
from detscope.predict.models.methods import LAYERS, fit_method
from detscope.predict.samples import StepSample, keep_measured, sum_samples

STAGES = ("training", "inference")
ASSUMED_WIDTH = log(1.4)  # of latencies by layers alone, until whole networks were measured: docs/predict.md
_ROWS_TO_CALIBRATE = 3


@dataclass(frozen=True)
class DeviceModel:
    """Models of targets ("memory": process bytes, "latency": ms); no `limit_bytes`: all runs fitted."""

    stage: str
    method: str
    targets: dict[str, TargetModel]
    fingerprint: str
    rows: int
    networks: tuple[str, ...]
    limit_bytes: float | None = None
    layer_rows: int = 0  # single layers that were measured
    notes: tuple[str, ...] = ()  # what the figures rest on besides measured steps


def fit_device(
    samples: Sequence[StepSample],
    targets: Sequence[str] = ("memory", "latency"),
    *,
    stage: str = "training",
    method: str = "auto",
    layer_times: Sequence[LayerTime] | None = None,
) -> DeviceModel:
    """Fit every target; learn the memory limit where some runs ran out of memory.

    With `layer_times` latency needs no samples, and memory without them is left to simulation.
    """
    if not samples and not layer_times:
        raise InputError("nothing was measured: no steps and no layers", "give files, or --microbench")
    training = stage == "training"
    table = fit_layers(layer_times, training=training) if layer_times else None
    fitted: dict[str, TargetModel] = {}
    notes: list[str] = []
    for target in targets:
        few = len(keep_measured(samples, "latency_ms")) < _ROWS_TO_CALIBRATE
        if target == "latency" and table is not None and few:
            alone = LayerModel(table)
            fitted[target] = TargetModel(alone, alone, LAYERS, LAYERS, ASSUMED_WIDTH, ASSUMED_WIDTH, NO_REACH)
            notes.append(
                "latency: layers alone, no whole network was measured; the interval is assumed to be"
                f" within a factor of {np.exp(ASSUMED_WIDTH):.1f}"
            )
        elif samples:
            fitted[target] = fit_method(samples, target, method, training=training, table=table)
        else:
            notes.append(f"{target}: no whole step was measured; it is simulated")
    limit, memory = None, fitted.get("memory")
    if memory is not None and isinstance(memory.far, MemoryModel) and not all(one.passed for one in samples):
        known = keep_outcomes(samples)
        predicted = memory.far.predict_unbounded([one.case for one in known])
        limit = learn_limit(predicted, [one.passed for one in known])
    sums = [sum_samples(samples)] if samples else []
    sums += [sum_layer_times(layer_times)] if layer_times else []
    return DeviceModel(
        stage,
        method,
        fitted,
        "+".join(sums),
        len(samples),
        tuple(sorted({one.network for one in samples})),
        limit,
        len(layer_times or ()),
        tuple(notes),
    )
