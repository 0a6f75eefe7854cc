"""A few samples of a new network: how much faster or slower its device part is than the model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detscope.predict.models.physical import PhysicalModel
from detscope.predict.samples import Sample

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """The factor on the device's time and how many samples it comes from."""

    factor: float
    samples: int


def calibrate(model: PhysicalModel, samples: Sequence[Sample]) -> tuple[PhysicalModel, Calibration]:
    """Scale the device's part by the median ratio of the samples that it bounds; the host's part stays."""
    device, host = model.parts([one.case for one in samples])
    truth = np.array([one.latency_ms for one in samples], dtype=float)
    bound = device > host
    if not bound.any():
        return model, Calibration(1.0, 0)
    factor = float(np.median(truth[bound] / device[bound]))
    scaled = tuple(value * factor for value in model.device_ms)
    return replace(model, device_ms=scaled), Calibration(factor, int(bound.sum()))


def spread_samples(samples: Sequence[Sample], count: int) -> list[Sample]:
    """`count` of them, spread over batch sizes from the smallest to the largest."""
    ordered = sorted(samples, key=lambda one: one.case.batch)
    places = np.unique(np.linspace(0, len(ordered) - 1, count).round().astype(int))
    return [ordered[place] for place in places]
