"""What a person asks of a network before it runs: latency, memory, will it fit, which batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import Any

import numpy as np

from detscope.errors import InputError, UsageError
from detscope.predict.device.model import DeviceModel
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.layers.model import LayerModel
from detscope.predict.memory.lifetimes import TrainingPlan, simulate_training
from detscope.predict.memory.model import FITS, MemoryModel, decide_fit
from detscope.predict.models.choice import TargetModel
from detscope.predict.models.methods import HybridModel, find_physical
from detscope.predict.samples import StepCase

_ITSELF = "(the model itself)"
_LARGEST = 1e24
_NO_MODEL, _CANNOT_TELL = "no device model", "cannot tell"
_FEATURES = 56  # of a network, by which it is near to or far from those that were measured


def share_by_stage(model: TargetModel, case: StepCase) -> dict[str, float] | None:
    """Shares of the device's time by stage; None where only trees were fitted, which know no layers."""
    physical = find_physical(model.near, model.far)
    by_stage = physical.sum_by_stage(case) if physical is not None else {}
    whole = float(sum(by_stage.values()))
    return {stage or _ITSELF: float(part) / whole for stage, part in by_stage.items()} if whole > 0 else None


def answer_questions(
    graph: LayerGraph,
    batches: Sequence[int],
    device: DeviceModel | None = None,
    limit_bytes: float | None = None,
    simulate: Callable[[StepCase], dict[str, Any]] | None = None,
    optimizer: str = "sgd",
) -> dict[str, Any]:
    """Rows per batch size and what follows from them; without a device model memory is simulated alone.

    `simulate` gives a row's memory where more is known than the layer graph; see `simulate_row`.
    """
    wrong = [batch for batch in batches if batch < 1]
    if wrong or not batches:
        raise UsageError(f"a batch of {wrong[0] if wrong else 'no'} images", "--batch-sizes 1,2,4,8")
    cases = [StepCase(graph, batch, optimizer) for batch in batches]
    limit = limit_bytes if limit_bytes is not None else (device.limit_bytes if device else None)
    rows = [(simulate or simulate_row)(case) for case in cases]
    notes: list[str] = []
    beyond: list[dict[str, Any]] = []
    if device is not None:
        beyond = _add_estimates(rows, cases, device)
        notes += [*device.notes, *_note_latency(graph, device, optimizer)]
    for row in rows:
        row["fits"], row["fits_why"] = _decide_fit(row, limit, device)
    known = [row for row in rows if row["latency_ms"] and row["fits"] != "does not fit"]
    timed = device is not None and "latency" in device.targets
    best = max(known, key=lambda row: row["batch"] / row["latency_ms"]) if known else None
    return {
        "network": graph.name,
        "fingerprint": device.fingerprint if device else None,
        "limit_bytes": limit,
        "rows": rows,
        "largest_batch_that_fits": max((row["batch"] for row in rows if row["fits"] == FITS), default=None),
        "best_batch_for_throughput": best and best["batch"],
        "cannot_tell": [] if timed else [f"latency: {_NO_MODEL}"],
        "latency_why": None if timed else _NO_MODEL,
        "extrapolations": beyond,
        "notes": notes,
    }


def simulate_row(case: StepCase) -> dict[str, Any]:
    """Memory of a case by its layer graph alone; what samples tell is filled in later."""
    found = simulate_training(case.graph, TrainingPlan(case.batch))
    return {
        "batch": case.batch,
        "allocated_bytes": max(found.first.allocated, found.later.allocated),
        "reserved_bytes": max(found.first.reserved, found.later.reserved),
        "categories": found.later.categories,
        "assumed": list(found.assumed),
        "process_bytes": None,
        "latency_ms": None,
        "extrapolated": None,
    }


def _add_estimates(
    rows: list[dict[str, Any]], cases: Sequence[StepCase], device: DeviceModel
) -> list[dict[str, Any]]:
    """Fill rows with what the device model says; gives of each target how far it had to reach."""
    beyond = []
    for target, key in (("memory", "process_bytes"), ("latency", "latency_ms")):
        model = device.targets.get(target)
        if model is None:
            continue
        with np.errstate(all="ignore"):
            estimate = model.estimate_cases(cases)
        ends = np.concatenate([estimate.predicted, estimate.lower, estimate.upper])
        if not ((ends > 0) & (ends < _LARGEST)).all():  # a model that was tampered with may give others
            raise InputError(
                f"the device model's {target} is no positive number", "fit it again: detscope fit"
            )
        for place, row in enumerate(rows):
            row[key] = float(estimate.predicted[place])
            row[f"{key}_interval"] = [float(estimate.lower[place]), float(estimate.upper[place])]
            if model.reach.places.size:  # else no whole network was measured: nothing to be far from
                row["extrapolated"] = bool(row["extrapolated"]) or bool(estimate.extrapolated[place])
        if target == "memory" and isinstance(model.far, MemoryModel):
            for row, wanted in zip(rows, model.far.predict_unbounded(cases).tolist(), strict=True):
                row["process_bytes_unbounded"] = max(wanted, row[key])
        if estimate.extrapolated.any() and model.reach.places.size:
            outside = len({number for case in cases for number in model.reach.find_outside(case)})
            beyond.append({"target": target, "features_outside": outside, "features": _FEATURES})
    return beyond


def _note_latency(graph: LayerGraph, device: DeviceModel, optimizer: str) -> Iterator[str]:
    """What latencies of this network rest on that was never measured."""
    latency = device.targets.get("latency")
    if latency is None:
        return
    physical = find_physical(latency.near, latency.far)
    if isinstance(physical, LayerModel):
        why, kinds = "operations no microbench has seen", physical.table.list_unseen_kinds(graph)
    else:
        why, kinds = "operations without a rule", graph.unknown_kinds
    if kinds:
        yield f"latency: {why}, counted by memory traffic: {', '.join(kinds)}"
    # trees know whole steps alone
    parts = [one.physical if isinstance(one, HybridModel) else one for one in (latency.near, latency.far)]
    known = all(isinstance(one, LayerModel) and one.table.knows_update(optimizer) for one in parts)
    if optimizer != "sgd" and not known:
        yield f"latency: with the optimizer of the device model's steps, not {optimizer.title()}'s update"


def _decide_fit(
    row: dict[str, Any], limit: float | None, device: DeviceModel | None
) -> tuple[str, str | None]:
    """One of four words; where it cannot be told, why."""
    if limit is None:
        return _CANNOT_TELL, "no memory limit"
    if row["process_bytes"] is None:  # the allocator's share alone: a process needs more
        unknown = "the device model has no measured memory" if device else "no device model"
        return ("does not fit", None) if row["reserved_bytes"] > limit else (_CANNOT_TELL, unknown)
    lower, upper = row["process_bytes_interval"]
    wanted = row.get("process_bytes_unbounded") or row["process_bytes"]
    return decide_fit(wanted, limit, log(upper / lower) / 2), None
