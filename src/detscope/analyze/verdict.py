"""The verdict: one sentence that names what limits this run, with its evidence."""

from __future__ import annotations

from typing import Any

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
    sentence = f"{largest} takes {phases[largest]['share']:.0%} of the step"
    stages = [
        row for row in summary.get("stages", []) if row["depth"] == 0 and not row["name"].startswith("(")
    ]
    if stages:
        top = max(stages, key=lambda row: row["total_ms"])
        sentence += (
            f"; the largest stage is {top['name']} with {top['share']:.0%}, forward and backward together"
        )
    return sentence


def _waiting_for_data(share: float, loader: dict[str, Any]) -> str:
    sentence = f"waiting for data: {share:.0%} of the step"
    capacity, demand = loader.get("capacity_images_per_s"), loader.get("demand_images_per_s")
    if capacity is None or demand is None:
        return sentence
    workers = loader.get("num_workers", 0)
    who = (
        "the loop itself loads" if workers == 0 else f"{workers} worker{'s' if workers != 1 else ''} deliver"
    )
    return f"{sentence}; {who} {capacity:.1f} images/s, the loop could take {demand:.1f}"
