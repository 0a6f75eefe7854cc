"""Memory of a training step on a device: simulated, with terms fitted from samples where there are some.

A process holds its context and libraries besides what the allocator reserved; it never holds less than when
the network was built, and cannot hold more than the device has, where some came up to that. Will it fit? A
prediction with its interval against the device's usable limit tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np

from detscope.predict.layers.graph import LayerGraph
from detscope.predict.memory.allocator import CachingAllocator
from detscope.predict.memory.lifetimes import RULES, SimulatedMemory, StepMemory, TrainingPlan, TrainingStep
from detscope.predict.models.older import collect_older_features
from detscope.predict.models.residual import SmoothResidual, fit_residuals
from detscope.predict.samples import Array, StepCase, StepSample, keep_measured

FITS, TOO_CLOSE, DOES_NOT_FIT = "fits", "too close to call", "does not fit"
NEVER_BEYOND = 0.1  # a prediction this far beyond the limit is no plain "fits", whatever the interval
_ROUNDS = 30
_ROWS_FOR_RULE = 60
_GIB = float(1 << 30)  # what processes hold besides reserved memory differs by tenths of it


@dataclass(frozen=True)
class ProcessTerm:
    """process = offset + slope x reserved, within floor and ceiling; bytes."""

    offset_bytes: float
    slope: float
    floor_bytes: float
    ceiling_bytes: float

    def bound_bytes(self, reserved: Array) -> Array:
        """Bytes of the process."""
        free = self.offset_bytes + self.slope * reserved
        return np.asarray(np.clip(free, self.floor_bytes, self.ceiling_bytes))

    def unbounded_bytes(self, reserved: Array) -> Array:
        """What the process would hold on a larger device."""
        free = self.offset_bytes + self.slope * reserved
        return np.asarray(np.maximum(free, self.floor_bytes))


def fit_process(reserved: Sequence[float] | Array, process: Sequence[float] | Array) -> ProcessTerm:
    """Least relative deviations between floor and ceiling, which are what is hardly ever passed."""
    known, truth = np.asarray(reserved, dtype=float), np.asarray(process, dtype=float)
    floor, highest = (float(value) for value in np.quantile(truth, (0.05, 0.99)))
    # the device's memory ended there where many hold the same, however much they reserved
    top = known[truth >= 0.98 * highest]
    full = len(top) >= max(5, 0.05 * len(truth)) and bool(top.max() >= 1.1 * top.min())
    ceiling = highest if full else float("inf")
    inside = (truth > 1.03 * floor) & (truth < 0.98 * ceiling)
    if inside.sum() < 3:
        return ProcessTerm(float(np.median(truth - known)), 1.0, float(truth.min()), float("inf"))
    columns = np.column_stack([np.ones(inside.sum()), known[inside]]) / truth[inside][:, None]
    weights = np.ones(int(inside.sum()))
    found = np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = np.linalg.lstsq(columns * root[:, None], root, rcond=None)[0]
        weights = 1 / np.maximum(np.abs(columns @ found - 1), 0.005)
    return ProcessTerm(float(found[0]), float(found[1]), floor, ceiling)


@lru_cache(maxsize=20000)
def _simulate_case(graph: LayerGraph, batch: int, rule: str) -> tuple[float, float]:
    """As `simulate_training`, from events that all batch sizes of a network share."""
    build, *steps = _split_events(graph, rule)
    allocator = CachingAllocator()
    _replay_events(allocator, build, batch)
    measured = []
    for events in steps:
        allocator.return_free_segments()
        allocator.reset_peaks()
        _replay_events(allocator, events, batch)
        measured.append(StepMemory(allocator.peak_allocated, allocator.peak_reserved, {}))
    return SimulatedMemory(measured[0], measured[1], ()).average_steps()


@lru_cache(maxsize=1000)
def _split_events(graph: LayerGraph, rule: str) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """Key, constant bytes and bytes per image of what comes (goes: no bytes) before and in two steps."""
    steps = [TrainingStep(graph, TrainingPlan(batch, workspace=rule)) for batch in (1, 2)]
    parts = [(step.build_network(), step.run_step(), step.run_step()) for step in steps]
    return tuple(
        tuple(
            (one.key, 2 * one.bytes - two.bytes, two.bytes - one.bytes)
            for one, two in zip(ones, twos, strict=True)
        )
        for ones, twos in zip(*parts, strict=True)
    )


def _replay_events(allocator: CachingAllocator, events: Sequence[tuple[int, int, int]], batch: int) -> None:
    for key, constant, per_image in events:
        if constant or per_image:
            allocator.allocate_block(key, constant + batch * per_image)
        else:
            allocator.release_block(key)


def simulate_bytes(cases: Sequence[StepCase], rule: str = "backward") -> tuple[Array, Array]:
    """Allocated and reserved bytes, averaged over the steps as the recorded runs were."""
    pairs = np.array([_simulate_case(case.graph, case.batch, rule) for case in cases], dtype=float)
    return pairs[:, 0], pairs[:, 1]


@dataclass(frozen=True)
class MemoryModel:
    """Without samples only the simulation; `reserved_residual` and `process_residual` make it a hybrid."""

    rule: str = "backward"
    process: ProcessTerm | None = None
    reserved_residual: SmoothResidual | None = None
    process_residual: SmoothResidual | None = None

    def __post_init__(self) -> None:
        """Refuse a rule that does not exist, which a file may hold."""
        if self.rule not in RULES:
            raise ValueError(f"no rule {self.rule!s:.20}")

    def predict_reserved(self, cases: Sequence[StepCase]) -> Array:
        """Peak of reserved bytes."""
        reserved = simulate_bytes(cases, self.rule)[1]
        if self.reserved_residual is not None:
            features = collect_memory_features(cases, self.rule)
            reserved = reserved * np.exp(self.reserved_residual.predict(features))
        return reserved

    def predict(self, cases: Sequence[StepCase]) -> Array:
        """Bytes of the process; needs a fitted process term."""
        return self._predict_process(cases, bounded=True)

    def predict_unbounded(self, cases: Sequence[StepCase]) -> Array:
        """What the process would hold if the device were large enough."""
        return self._predict_process(cases, bounded=False)

    def _predict_process(self, cases: Sequence[StepCase], *, bounded: bool) -> Array:
        if self.process is None:
            raise ValueError("no process term: fit one from samples")
        reserved = self.predict_reserved(cases)
        found = self.process.bound_bytes(reserved) if bounded else self.process.unbounded_bytes(reserved)
        if self.process_residual is not None:
            found = found + _GIB * self.process_residual.predict(collect_memory_features(cases, self.rule))
        return np.minimum(found, self.process.ceiling_bytes) if bounded else found


def collect_memory_features(cases: Sequence[StepCase], rule: str) -> Array:
    """The older features (as logarithms) and what the simulation makes of the case."""
    allocated, reserved = simulate_bytes(cases, rule)
    parameters = np.log([sum(case.graph.parameter_sizes) + 1.0 for case in cases])
    batches = np.log([case.batch for case in cases])
    physics = np.column_stack(
        [np.log(allocated), np.log(reserved), np.log(reserved / allocated), batches, parameters]
    )
    return np.hstack([np.log(collect_older_features(cases) + 1.0), physics])


def choose_rule(samples: Sequence[StepSample]) -> str:
    """The workspace rule under which the simulation is closest to measured reserved bytes."""
    known = keep_measured(samples, "reserved_bytes")
    if not known:
        return RULES[0]
    # by a sum and not by place: most are the same in every fold, and are simulated once
    drawn = sorted(known, key=lambda one: crc32(f"{one.network} {one.level} {one.case.batch}".encode()))
    some = drawn[:_ROWS_FOR_RULE]
    truth = np.array([one.reserved_bytes for one in some], dtype=float)

    def error(rule: str) -> float:
        return float(np.abs(np.log(simulate_bytes([one.case for one in some], rule)[1] / truth)).mean())

    return min(RULES, key=error)


def fit_memory(samples: Sequence[StepSample], *, hybrid: bool) -> MemoryModel:
    """Rule and process term; as a hybrid also what reserved and process bytes were off by."""
    rule = choose_rule(samples)
    known = [one for one in keep_measured(samples, "process_bytes") if one.reserved_bytes is not None]
    cases = [one.case for one in known]
    truth = np.array([one.process_bytes for one in known], dtype=float)
    reserved = np.array([one.reserved_bytes for one in known], dtype=float)
    simulated = simulate_bytes(cases, rule)[1]
    if not hybrid:  # fitted to what it will be given: simulated bytes
        return MemoryModel(rule, fit_process(simulated, truth))
    process = fit_process(reserved, truth)
    features = collect_memory_features(cases, rule)
    left_over = [np.log(reserved / simulated), (truth - process.bound_bytes(reserved)) / _GIB]
    return MemoryModel(rule, process, *fit_residuals(features, left_over))


def learn_limit(predicted: Array, passed: Sequence[bool]) -> float:
    """The limit that splits what ran from what did not with the fewest mistakes; the middle of equal ones.

    Infinite where everything ran: the limit lies beyond what was tried.
    """
    ran = np.asarray(passed, dtype=bool)
    if ran.all():
        return float("inf")
    ordered = np.unique(predicted)
    cuts = np.concatenate([[ordered[0] * 0.99], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] * 1.01]])
    wrong = np.array([((predicted <= cut) != ran).sum() for cut in cuts])
    best = cuts[wrong == wrong.min()]
    return float(np.median(best))


def decide_fit(predicted: float, limit: float, width: float) -> str:
    """One of three words; `width` is the interval's half width as a logarithm."""
    lower, upper = predicted * np.exp(-width), predicted * np.exp(width)
    if upper <= limit and predicted <= limit * (1 + NEVER_BEYOND):
        return FITS
    return DOES_NOT_FIT if lower > limit else TOO_CLOSE


def lean_towards(predicted: float, limit: float) -> str:
    """The better guess where it is too close to call."""
    return FITS if predicted <= limit else DOES_NOT_FIT


def keep_outcomes(samples: Sequence[StepSample]) -> list[StepSample]:
    """One sample per case: where it was tried several times, it ran if it ever did."""
    latest: dict[tuple[str, int, int], StepSample] = {}
    for one in samples:
        key = (one.network, one.level, one.case.batch)
        if key not in latest or one.passed:
            latest[key] = one
    return list(latest.values())
