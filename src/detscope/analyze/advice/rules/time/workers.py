"""More loader workers, where the loop waits for data that one worker makes too slowly."""

from __future__ import annotations

import math

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_WAIT = 0.05
HEADROOM = 1.15  # so that one slow image does not stop the loop
MOST_WORKERS = 32


def advise(case: Case) -> Advice | None:
    """As many workers as the demand needs."""
    loader = case.summary.loader
    capacity, demand = loader.capacity_images_per_s, loader.demand_images_per_s
    wait, workers = case.phases.get("data", 0.0), loader.num_workers
    if not case.own_loader or wait < LEAST_WAIT or not capacity or not demand or workers is None:
        return None
    each = capacity / max(1, workers)
    wanted = min(MOST_WORKERS, max(1, math.ceil(demand * HEADROOM / each)))
    if wanted <= workers:
        return None
    images = demand * case.step_ms * (1 - wait) / 1e3
    wait_after_ms = max(0.0, images / (each * wanted) * 1e3 - case.step_ms * (1 - wait))
    gain = wait - wait_after_ms / case.step_ms
    now = {0: "the loop itself loads", 1: "1 worker delivers"}.get(workers, f"{workers} workers deliver")
    return case.suggest_change(
        f"{wanted} loader workers instead of {workers}",
        f"The loop waits for data {wait:.0%} of the step: {now} {capacity:.1f} images/s,"
        f" it could take {demand:.1f}.",
        max(0.0, gain),
        "workers do not take processor time away from the loop",
        {"training.num_workers": wanted},
        f"DataLoader(..., num_workers={wanted})",
    )


PART = AdviceRule("workers", 10, time=advise)
