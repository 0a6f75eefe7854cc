"""Loading beside the loop, where a recorded file shows a device that waits for batches and no loader."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_IDLE = 0.05
_IN_THE_LOOP = "_SingleProcessDataLoaderIter"  # torch's own name of an iterator without workers


def advise(case: Case) -> Advice | None:
    """What the loader can deliver is not in such a file: how long the device waited for it is."""
    use, share = case.summary.device_use, case.idle_share("data")
    measured = case.summary.loader.capacity_images_per_s is not None  # then other rules know more
    if use is None or measured or not case.own_loader or share < LEAST_IDLE:
        return None
    call = next((row.call for row in use.blame if row.cause == "data"), "the loader")
    alone = _IN_THE_LOOP in call
    title = "load batches in workers beside the loop" if alone else "more or faster loader workers"
    who = "the loop itself loads them" if alone else "its workers do not keep up"
    return case.suggest_change(
        title,
        f"The device stands still {share:.0%} of the time, waiting in {call}: {who}.",
        share,
        "batches are ready when they are asked for",
        in_code="DataLoader(..., num_workers=4, pin_memory=True, persistent_workers=True), or more of them",
    )


PART = AdviceRule("starved", 15, time=advise)
