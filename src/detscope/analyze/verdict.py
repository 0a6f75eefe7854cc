"""The verdict: one sentence that names what limits this run, with its evidence."""

from __future__ import annotations

from typing import Any

from detscope.analyze.stats import percent
from detscope.analyze.step.loader import lies_ready

DATA_BOUND_SHARE = 0.15


def verdict(summary: dict[str, Any]) -> str:
    """What limits the step."""
    phases = {row["name"]: row for row in summary.get("phases", [])}
    if not phases or not summary.get("step_ms", {}).get("p50"):
        return "cannot tell: no complete step was recorded"
    if phases["data"]["share"] >= DATA_BOUND_SHARE:
        return _waiting_for_data(phases["data"]["share"], summary.get("loader", {}))
    largest = max(
        ("forward", "backward", "optimizer", "transfer", "other"), key=lambda name: phases[name]["share"]
    )
    sentence = f"{largest} takes {percent(phases[largest]['share'])} of the step"
    stages = [
        row for row in summary.get("stages", []) if row["depth"] == 0 and not row["name"].startswith("(")
    ]
    if stages:
        top = max(stages, key=lambda row: row["total_ms"])
        together = ", forward and backward together" if phases["backward"]["share"] > 0 else ""
        sentence += f"; the largest stage is {top['name']} with {percent(top['share'])}{together}"
    return sentence


def _waiting_for_data(share: float, loader: dict[str, Any]) -> str:
    if lies_ready(loader):
        return _receiving(share, loader)
    sentence = f"waiting for data: {percent(share)} of the step"
    capacity, demand = loader.get("capacity_images_per_s"), loader.get("demand_images_per_s")
    if capacity is None or demand is None:
        return sentence
    workers = loader.get("num_workers", 0)
    many = "1 worker delivers" if workers == 1 else f"{workers} workers deliver"
    who = many if workers else "the loop itself loads"
    return f"{sentence}; {who} {capacity:.1f} images/s, the loop could take {demand:.1f}"


def _receiving(share: float, loader: dict[str, Any]) -> str:
    """Workers were in time: what takes long is to get from them what they have made."""
    receive_ms, tensors = loader["receive_ms"], loader.get("tensors_per_batch")
    much = percent(share * receive_ms / loader["wait_ms"])
    sentence = f"batches lie ready: receiving them takes {receive_ms:.1f} ms a step, {much} of it"
    if tensors is None:
        return sentence
    return f"{sentence} ({'one tensor' if round(tensors) == 1 else f'{tensors:.0f} tensors'} each)"
