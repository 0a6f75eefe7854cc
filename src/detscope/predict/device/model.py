"""A device's model: what was fitted for it, from which data, and the limit of its memory.

A new device has one from a few samples and the model of an old one. What a network asks of a device (work by
kernel class, simulated memory) is known from the old device; how fast the new one does it is a factor, and
what its process holds is a constant. A class may have a factor of its own where the samples, left out one by
one, are met better so; all are pulled to the common one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np

from detscope.errors import InputError
from detscope.predict.layers.model import LayerModel, fit_layers
from detscope.predict.layers.times import LayerTime, sum_layer_times
from detscope.predict.memory.model import MemoryModel, keep_outcomes, learn_limit
from detscope.predict.models.choice import COVERAGE, NO_REACH, TargetModel
from detscope.predict.models.methods import LAYERS, TARGETS, find_physical, fit_method
from detscope.predict.models.physical import PhysicalModel
from detscope.predict.models.residual import solve_least_squares
from detscope.predict.samples import Array, StepSample, keep_measured, sum_samples

STAGES = ("training", "inference")
ASSUMED_WIDTH = log(1.4)  # of latencies by layers alone, until whole networks were measured: docs/predict.md
_ROWS_TO_CALIBRATE = 3
FEWEST = 3
USUAL = 5
LEFT_OUT = "samples of the new device, left out one by one"
_SPREADS = (0.0, 0.1, 0.3)  # of the classes' factors around the common one, as logarithms
_HOST_SPREAD = 0.5  # the host may be another machine: its factor is pulled less
_USUAL_ERROR = 0.1
_COMMON = "all"


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


@dataclass(frozen=True)
class OldDeviceTimes:
    """Milliseconds of the old device: by kernel class, and of the host beside it."""

    names: tuple[str, ...]
    classes: Array
    host: Array

    def take_rows(self, places: Sequence[int]) -> OldDeviceTimes:
        return OldDeviceTimes(self.names, self.classes[places], self.host[places])

    def predict(self, logs: Array) -> Array:
        """With a common factor, that of the host beside it, and one for each class beside it."""
        device = self.classes @ np.exp(logs[0] + logs[2:])
        return np.asarray(np.maximum(device, self.host * np.exp(logs[0] + logs[1])))


def transfer_device(
    source: DeviceModel, samples: Sequence[StepSample], targets: Sequence[str]
) -> DeviceModel:
    """The old device's model with factors and constants for the new one; its memory limit is not known."""
    made: dict[str, TargetModel] = {}
    notes: list[str] = []
    for target in targets:
        old = source.targets.get(target)
        if old is None:
            notes.append(f"{target}: the old device's model has none")
            continue
        made[target] = transfer_target(old, target, samples)
        errors = made[target].errors[LEFT_OUT]
        notes.append(
            f"{target}: {old.far_name} of another device, {len(samples)} samples of this one; error on those"
            f" {100 * errors['old device']:.1f} % before, {100 * errors[made[target].far_name]:.1f} % after"
            " (each left out once)"
        )
    if not made:
        raise InputError("the old device's model has none of the targets asked for", "--target")
    return DeviceModel(
        source.stage,
        "transfer",
        made,
        f"{source.fingerprint}+{sum_samples(samples)}",
        len(samples),
        tuple(sorted({one.network for one in samples})),
        notes=tuple(notes),
    )


def transfer_target(source: TargetModel, target: str, samples: Sequence[StepSample]) -> TargetModel:
    """One target for the new device."""
    known = keep_measured(samples, TARGETS[target])
    if len(known) < FEWEST:
        raise InputError(
            f"{len(known)} measured steps with {target}: a transfer needs {FEWEST} or more",
            "measure a few batch sizes of two or three networks",
        )
    return _transfer_latency(source, known) if target == "latency" else _transfer_memory(source, known)


def _transfer_latency(source: TargetModel, samples: Sequence[StepSample]) -> TargetModel:
    old = find_physical(source.far, source.near)  # residuals that were learnt on the old device stay there
    if old is None:
        raise InputError(
            "the old device's latency is by trees, which know nothing about another device",
            "fit it again with --method auto or physical",
        )
    truth = np.array([one.latency_ms for one in samples], dtype=float)
    cases = [one.case for one in samples]
    shares = [old.share_by_class(case) for case in cases]
    names = tuple(dict.fromkeys(name for one in shares for name in one))
    classes = np.array([[one.get(name, 0.0) for name in names] for one in shares])
    physics = OldDeviceTimes(names, classes, old.split_parts(cases)[1])
    before = np.abs(physics.predict(np.zeros(2 + len(physics.names))) / truth - 1)
    tried = {}  # log(predicted / measured) of every sample by factors from the others
    for spread in _SPREADS:
        tried[spread] = np.zeros(len(truth))
        for place in range(len(truth)):
            others = [one for one in range(len(truth)) if one != place]
            logs = _fit_factors(physics.take_rows(others), truth[others], spread)
            predicted = max(physics.take_rows([place]).predict(logs)[0], 1e-9)
            tried[spread][place] = np.log(predicted / truth[place])
    spread = min(tried, key=lambda one: float((tried[one] ** 2).mean()))
    logs = _fit_factors(physics, truth, spread)
    new = _scale_model(old, physics.names, np.exp(logs))
    return _make_target(source, new, tried[spread], float(before.mean()))


def _fit_factors(physics: OldDeviceTimes, truth: Array, spread: float) -> Array:
    """Logarithms: common, host beside it, classes beside it; least squares with a pull to one factor."""
    count = len(physics.names)
    free = 2 + (count if spread else 0)

    def whole(some: Array) -> Array:
        return np.concatenate([some, np.zeros(2 + count - len(some))])

    def left_over(some: Array) -> Array:
        errors = np.log(np.maximum(physics.predict(whole(some)), 1e-9) / truth) / _USUAL_ERROR
        return np.concatenate([errors, some[1:2] / _HOST_SPREAD, some[2:] / (spread or 1.0)])

    start = np.zeros(free)
    start[0] = np.median(np.log(truth / np.maximum(physics.predict(whole(start)), 1e-9)))
    return whole(solve_least_squares(left_over, start))


def _scale_model(
    old: PhysicalModel | LayerModel, names: Sequence[str], factors: Array
) -> PhysicalModel | LayerModel:
    common, host, *classes = factors.tolist()
    by_name = {name: common * own for name, own in zip(names, classes, strict=True)}
    if isinstance(old, LayerModel):
        known = {name: old.factor_of(name) for name in {_COMMON, *by_name, *old.scales}}
        scales = {name: value * by_name.get(name, common) for name, value in known.items()}
        timed = {
            name: replace(one, host_ms=one.host_ms * common * host) for name, one in old.table.classes.items()
        }
        return replace(old, table=replace(old.table, classes=timed), scales=scales)
    return replace(
        old,
        device_ms=tuple(value * by_name[name] for name, value in zip(names, old.device_ms, strict=True)),
        call_ms=old.call_ms * common * host,
        step_ms=old.step_ms * common * host,
    )


def _transfer_memory(source: TargetModel, samples: Sequence[StepSample]) -> TargetModel:
    """The constant of the process: context and libraries are other ones, what tensors need is the same."""
    old = next((one for one in (source.far, source.near) if isinstance(one, MemoryModel)), None)
    if old is None or old.process is None:
        raise InputError(
            "the old device's memory is by trees, which know nothing about another device",
            "fit it again with --method auto or physical",
        )
    plain = replace(old, process_residual=None)
    cases = [one.case for one in samples]
    truth = np.array([one.process_bytes for one in samples], dtype=float)
    above = old.process.slope * plain.predict_reserved(cases)
    constants = truth - above
    others = [np.median(np.delete(constants, place)) for place in range(len(truth))]
    errors = np.log(np.maximum(above + others, 1.0) / truth)
    offset = float(np.median(constants))
    shift = offset - old.process.offset_bytes
    process = replace(
        old.process,
        offset_bytes=offset,
        floor_bytes=max(0.0, old.process.floor_bytes + shift),
        ceiling_bytes=float("inf"),
    )
    before = np.abs(plain.predict_unbounded(cases) / truth - 1)
    return _make_target(source, replace(plain, process=process), errors, float(before.mean()))


def _make_target(
    source: TargetModel, new: PhysicalModel | LayerModel | MemoryModel, errors: Array, before: float
) -> TargetModel:
    """Intervals as wide as the samples' own errors say, and no narrower than on the old device.

    Of networks that were not seen there either, both errors count.
    """
    from scipy.stats import t as student  # type: ignore[import-untyped]

    count = len(errors)
    spread = sqrt(float((errors**2).mean()))
    here = float(student.ppf(0.5 + COVERAGE / 2, count - 1)) * spread * sqrt(1 + 1 / count)
    kind = "layers" if isinstance(new, LayerModel) else "physical"
    name = f"{kind}, transferred"
    means = next(iter(source.errors.values()), {})
    # where the old device used something better than what is transferred, wider by as much
    own, used = means.get(kind), means.get(source.near_name)
    near_width = source.near_width * (max(1.0, own / used) if own and used else 1.0)
    return replace(
        source,
        near=new,
        far=new,
        near_name=name,
        far_name=name,
        near_width=max(near_width, here),
        beside_width=None,
        far_width=float(np.hypot(source.far_width, here)),
        errors={LEFT_OUT: {name: float(np.abs(np.expm1(errors)).mean()), "old device": before}},
    )
