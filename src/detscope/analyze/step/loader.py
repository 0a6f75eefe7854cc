"""The data pipeline: what each worker does, what it could deliver, and how long the loop waited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from detscope.analyze.step.columns import highest, lowest, mean, total
from detscope.analyze.step.steps import TypicalSteps

REGIONS = ("load", "decode", "transform", "collate")


def loader_figures(
    loader: pl.DataFrame,
    typical: TypicalSteps,
    images_per_step: float | None,
    wait_ms: float,
    num_workers: int | None = None,
) -> dict[str, Any]:
    """Workers, capacity and demand. Capacity: images/s the workers make when they never wait.

    `num_workers` is what the loader says; without it those count that made a batch of the measured steps.
    """
    steps_ms = typical.p50_ms or 0.0
    result: dict[str, Any] = {"wait_ms": wait_ms, "workers": []}
    busy_ms = steps_ms - wait_ms
    result["demand_images_per_s"] = (
        images_per_step / busy_ms * 1e3 if images_per_step and busy_ms > 0 else None
    )
    chosen = loader.filter(pl.col("step").is_in(typical.measured))
    batches = chosen.filter(pl.col("region") == "batch")
    if batches.height == 0:
        result["capacity_images_per_s"] = None
        result["why"] = "the loader's workers could not be measured (not a map-style DataLoader)"
        return result
    span_ns = _window_ns(batches)
    for worker in sorted(batches["worker"].unique().to_list()):
        own = batches.filter(pl.col("worker") == worker)
        parts = chosen.filter(pl.col("worker") == worker)
        row: dict[str, Any] = {"worker": worker, "batches": own.height}
        for region in REGIONS:
            busy = parts.filter(pl.col("region") == region)["wall_ns"]
            row[f"{region}_ms"] = total(busy) / 1e6 / own.height
        row["batch_ms"] = total(own["wall_ns"]) / 1e6 / own.height
        row["busy_share"] = min(1.0, total(own["wall_ns"]) / span_ns) if span_ns else None
        row["wait_ms"] = total(own["wait_ns"]) / 1e6 / own.height
        result["workers"].append(row)
    making_s = total(batches["wall_ns"]) / 1e9
    seen = sum(row["worker"] >= 0 for row in result["workers"])
    result["num_workers"] = seen if num_workers is None else num_workers
    parallel = max(1, result["num_workers"])
    result["capacity_images_per_s"] = total(batches["images"]) / making_s * parallel if making_s else None
    return result | _receiving(batches.filter(pl.col("step").is_in(typical.steps)), wait_ms)


def _receiving(batches: pl.DataFrame, wait_ms: float) -> dict[str, Any]:
    """How much of the waiting came after a batch was made; None where nobody sent it or it was not kept."""
    sent = batches.drop_nulls("receive_ns")
    waited, received = total(sent["wait_ns"]), total(sent["receive_ns"])
    if not waited:
        return dict.fromkeys(("receive_ms", "ready_share", "tensors_per_batch"))
    ready = sent.filter(pl.col("receive_ns") >= pl.col("wait_ns")).height / sent.height
    return {
        "receive_ms": wait_ms * received / waited,
        "ready_share": ready,
        "tensors_per_batch": mean(sent["tensors"]),
    }


def lies_ready(loader: Mapping[str, Any]) -> bool:
    """Whether most batches were made before they were asked for, so that waiting is receiving."""
    wait_ms, receive_ms = loader.get("wait_ms"), loader.get("receive_ms")
    if not wait_ms or receive_ms is None or (loader.get("ready_share") or 0.0) < 0.5:
        return False
    return bool(receive_ms >= wait_ms / 2)


def _window_ns(batches: pl.DataFrame) -> int:
    ends = batches["start_ns"] + batches["wall_ns"]
    return highest(ends) - lowest(batches["start_ns"])
