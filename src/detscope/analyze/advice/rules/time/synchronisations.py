"""Calls that make the device wait for the host."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case


def advise(case: Case) -> Advice | None:
    """The costliest call that emptied the device's queue."""
    use = case.summary.device_use
    top = next((row for row in use.blame if row.cause == "synchronisation"), None) if use else None
    if top is None:
        return None
    where = top.module or top.line or top.inside
    return case.suggest_change(
        f"avoid {top.call}" + (f" in {where}" if where else ""),
        f"The device stands still {top.idle_ms_per_step or 0.0:.2f} ms per step because {top.call} makes the"
        f" host wait for a result before it launches more ({top.gaps} times).",
        top.share or 0.0,
        "the wait disappears with the call",
        in_code="in the code: keep the value on the device, or read it once in many steps",
    )


PART = AdviceRule("synchronisations", 110, time=advise)
