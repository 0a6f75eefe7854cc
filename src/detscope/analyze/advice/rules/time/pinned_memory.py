"""Pinned memory, where copies to the device make the host wait."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case


def advise(case: Case) -> Advice | None:
    """Copies from pinned memory run beside the computation."""
    share = case.phases.get("transfer", 0.0)
    told = case.read_setting("training.pin_memory")
    if told is None:  # recorded elsewhere: the copies say what memory they came from
        told, share = False, _pageable_share(case)
    if not case.on_accelerator or told is not False or not share:
        return None
    return case.suggest_change(
        "pin the loader's memory",
        f"Copies to the device take {share:.0%} of the step and come from pageable memory.",
        share / 2,
        "pinned copies take half as long",
        {"training.pin_memory": True},
        "DataLoader(..., pin_memory=True), and .to(device, non_blocking=True)",
    )


def _pageable_share(case: Case) -> float:
    """Share of the device's window in copies to it from pageable memory while no kernel ran."""
    use = case.summary.device_use
    if use is None or use.copies is None or use.idle is None or not use.idle.window_ns:
        return 0.0
    exposed = [
        row.exposed_ns for row in use.copies.rows if (row.direction, row.memory) == ("HtoD", "pageable")
    ]
    return sum(exposed) / use.idle.window_ns


PART = AdviceRule("pinned_memory", 40, time=advise)
