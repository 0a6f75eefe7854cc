"""Batches prepared further ahead, where workers are fast enough on average and still late at times."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_WAIT = 0.03
FULL_QUEUE = 8.0  # times what is wanted: then batches lie ready, also where a run does not tell


def advise(case: Case) -> Advice | None:
    """A larger prefetch factor smooths what comes in bursts."""
    loader = case.summary.loader
    capacity, demand = loader.capacity_images_per_s, loader.demand_images_per_s
    wait, workers = case.phases.get("data", 0.0), loader.num_workers or 0
    if not case.own_loader or not workers or not capacity or not demand or wait < LEAST_WAIT:
        return None
    if loader.lies_ready or not demand * 1.15 <= capacity <= demand * FULL_QUEUE:
        return None
    factor = case.read_setting("training.prefetch_factor", 2)
    return case.suggest_change(
        f"prefetch_factor {2 * factor} instead of {factor}"
        if case.by_settings
        else "twice the prefetch_factor",
        f"Workers make {capacity:.1f} images/s, more than the {demand:.1f} wanted, and yet the loop waits"
        f" {wait:.0%} of the step: batches come in bursts.",
        wait / 2,
        "half of the waiting comes from bursts that twice the queue evens out",
        {"training.prefetch_factor": 2 * factor},
        f"DataLoader(..., prefetch_factor={2 * factor}), or twice what it is now",
    )


PART = AdviceRule("prefetch", 20, time=advise)
