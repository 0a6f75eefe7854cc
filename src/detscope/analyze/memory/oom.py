"""Running out of memory as an answer: what failed, what was there, which batch would fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import polars as pl

from detscope.analyze.memory.blocks import PER_IMAGE, Ledger, Window, owners, peak_event
from detscope.analyze.memory.figures import OutOfMemory
from detscope.analyze.rerun import MADE_BY_SETTINGS, rerun_command
from detscope.runs.info import MemoryInfo, OutOfMemoryInfo
from detscope.runs.reader import Run

STATES_PER_PARAMETER = {"adamw": 2, "sgd": 1}
# What a process takes beside its tensors between its first forward pass and its second step: compiled
# kernels, the account itself, stacks of threads. 94 MB were measured with tiny_ssd on a CPU.
FIRST_STEP_BYTES = 96_000_000


@dataclass(frozen=True)
class _Need:
    """What every step takes, and what an image brings."""

    fixed_bytes: int
    bytes_per_image: float | None
    basis: str


def explain_oom(run: Run, ledger: Ledger, windows: list[Window]) -> OutOfMemory:
    """The request that failed, the account then, and the largest batch that would fit by this run's slope."""
    told = cast(OutOfMemoryInfo, run.info.get("oom") or {})
    fitted = int(ledger.level.max(initial=0))
    about = cast(MemoryInfo, run.info.get("memory") or {})
    batch = run.info.get("batch_size")
    own = _beside_tensors(about, told) if run.status == "oom_host" else 0
    need = _estimate_need(run, ledger, windows, told)
    if about.get("unfinished_lost"):  # the account of the step did not survive
        lost = "no memory was left to read what the step took"
        suggested, why = (batch // 2, None) if batch and batch > 1 else (None, f"cannot tell: {lost}")
        need = replace(need, bytes_per_image=None, basis=f"half the batch: {lost}") if suggested else need
    else:
        suggested, why = _suggest_batch(fitted, own, need, batch)
    rerun = rerun_command(run.folder, run.info) if suggested is not None else None
    size = f" --batch-size {suggested}" if run.info.get("verb") in MADE_BY_SETTINGS else ""
    return OutOfMemory(
        status=run.status,
        request_bytes=told.get("request_bytes"),
        device=told.get("device"),
        phase=told.get("phase"),
        module=told.get("module"),
        message=told.get("message"),
        limit_bytes=fitted,
        kept_back_bytes=own,
        fixed_bytes=need.fixed_bytes,
        bytes_per_image=need.bytes_per_image,
        basis=need.basis,
        suggested_batch=suggested,
        why=why,
        command=None if rerun is None else rerun + size,
    )


def _suggest_batch(
    limit: int, kept_back: int, need: _Need, batch: int | None
) -> tuple[int | None, str | None]:
    """The largest batch that fits, or why none can be named."""
    slope = need.bytes_per_image
    if not batch or not slope:
        return None, "cannot tell: no image's share of the memory is known"
    fits = int((limit - kept_back - need.fixed_bytes) // slope)
    if fits < 1 and limit - need.fixed_bytes >= slope:
        fits = 1  # by this run's own figures one would; whether it does, only trying tells
    if fits < 1:
        return None, "not even one image fits beside what every step needs"
    if batch == 1:
        return None, "the batch is one image already"
    return min(fits, batch - 1), None


def _beside_tensors(about: MemoryInfo, told: OutOfMemoryInfo) -> int:
    """Host memory that later steps do not have for tensors: the account, and what the first step brings."""
    own = int(about.get("own_bytes") or 0)
    return max(own, FIRST_STEP_BYTES) if told.get("step") == 0 else own


def _estimate_need(run: Run, ledger: Ledger, windows: list[Window], told: OutOfMemoryInfo) -> _Need:
    """The fixed part and what an image brings: of a whole step where one ended, else of what was seen."""
    batch = run.info.get("batch_size")
    images = batch if isinstance(batch, int) and batch > 0 else None
    whole = [window for window in windows if window.mode != "unfinished"]
    if whole:
        # the first step has neither gradients nor optimizer state before it: the last shows what stays
        events = [peak_event(ledger, window.first, window.last) for window in whole]
        variable = max(_variable(ledger, event) for event in events)
        fixed = max(int(ledger.level[event]) - _variable(ledger, event) for event in events)
        basis = "the highest of the steps that ended"
        fixed = max(fixed, _expected_fixed(run, ledger))
    else:
        event = peak_event(ledger, 0, len(ledger.level))
        seen = _variable(ledger, event) + int(told.get("request_bytes") or 0)
        rest, basis = _rest_of_forward(ledger, event, told)
        variable = seen + rest
        fixed = _expected_fixed(run, ledger)
    return _Need(fixed, variable / images if images else None, basis)


def _variable(ledger: Ledger, event: int) -> int:
    alive = pl.Series(ledger.alive(event))
    return int(ledger.blocks.filter(alive & ledger.blocks["category"].is_in(PER_IMAGE))["bytes"].sum())


def _expected_fixed(run: Run, ledger: Ledger) -> int:
    """Parameters, their gradients and the optimizer's state, also where the run did not get so far."""
    alive = ledger.blocks.filter(pl.Series(ledger.begin_at < np.iinfo(np.int64).max))
    sums = {
        name: int(size)
        for name, size in alive.group_by("name", "category")
        .agg(pl.col("bytes").max())
        .group_by("category")
        .agg(pl.col("bytes").sum())
        .iter_rows()
    }
    parameters = sums.get("parameters", 0)
    training = (run.info.get("settings") or {}).get("training") or {}
    kind = training.get("optimizer")
    states = STATES_PER_PARAMETER.get(str(kind), 0)
    if kind == "sgd" and not training.get("momentum"):
        states = 0
    trained = parameters if run.info.get("verb") != "infer" else 0
    gradients = sums.get("gradients", 0) or trained
    optimizer = sums.get("optimizer", 0) or states * trained
    return parameters + gradients + optimizer


def _rest_of_forward(ledger: Ledger, event: int, told: OutOfMemoryInfo) -> tuple[int, str]:
    """What modules that had not run yet would have added: each as much as the last ones that had.

    Feature maps shrink along a network, so that this is rather too much than too little. Behind the
    forward pass, the gradient of a feature map and what becomes of it are still to come.
    """
    blocks = owners(ledger.blocks).filter(pl.Series(ledger.alive(event)))
    if told.get("phase") not in (None, "forward", "data", "transfer"):
        largest = blocks.filter(pl.col("category").is_in(PER_IMAGE))["bytes"].max()
        basis = "a step that failed after its forward pass, and two more blocks as large as its largest"
        return 2 * int(largest or 0), basis  # type: ignore[arg-type]
    weighted = set(blocks.filter(pl.col("category") == "parameters")["owner"].to_list())
    made = (
        blocks.filter((pl.col("direction") == "forward") & pl.col("category").is_in(PER_IMAGE))
        .filter(pl.col("owner").is_in(sorted(weighted)))
        .group_by("owner")
        .agg(pl.col("bytes").sum(), pl.col("alloc_ns").max())
        .sort("alloc_ns")
    )
    if not made.height:
        return 0, "a step that failed before any module with parameters had run"
    last = made["bytes"].tail(max(1, made.height // 3)).to_list()
    left = len(weighted) - made.height
    basis = (
        f"a step that failed after {made.height} of {len(weighted)} modules with parameters;"
        " each of the others is taken to be like the last ones"
    )
    return round(left * sum(last) / len(last)), basis
