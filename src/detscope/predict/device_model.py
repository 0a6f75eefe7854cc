"""A device's model: what was fitted for it, from which data, and the limit of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detscope.predict.choice import TargetModel
from detscope.predict.fits import learn_limit, with_outcome
from detscope.predict.memory_model import MemoryModel
from detscope.predict.methods import fit_method
from detscope.predict.samples import Sample, fingerprint

STAGES = ("training", "inference")


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


def fit_device(
    samples: Sequence[Sample],
    targets: Sequence[str] = ("memory", "latency"),
    *,
    stage: str = "training",
    method: str = "auto",
) -> DeviceModel:
    """Fit every target; learn the memory limit where some runs ran out of memory."""
    training = stage == "training"
    fitted = {target: fit_method(samples, target, method, training=training) for target in targets}
    return DeviceModel(
        stage,
        method,
        fitted,
        fingerprint(samples),
        len(samples),
        tuple(sorted({one.network for one in samples})),
        _limit(samples, fitted.get("memory")),
    )


def _limit(samples: Sequence[Sample], memory: TargetModel | None) -> float | None:
    if memory is None or all(one.passed for one in samples) or not isinstance(memory.far, MemoryModel):
        return None
    known = with_outcome(samples)
    predicted = memory.far.unbounded([one.case for one in known])
    return learn_limit(predicted, [one.passed for one in known])
