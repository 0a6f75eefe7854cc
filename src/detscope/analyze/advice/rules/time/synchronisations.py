"""Calls that make the device wait for the host."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case


def advise(case: Case) -> Advice | None:
    """The costliest call that emptied the device's queue."""
    device = case.summary.get("device")
    blame = device.get("blame") if isinstance(device, dict) else None
    waits = [row for row in blame or [] if row.get("cause") == "synchronisation"]
    if not waits:
        return None
    top = waits[0]
    cost = float(top.get("idle_ms_per_step") or 0.0)
    where = top.get("module") or top.get("line") or top.get("inside")
    return case.suggest_change(
        f"avoid {top.get('call')}" + (f" in {where}" if where else ""),
        f"The device stands still {cost:.2f} ms per step because {top.get('call')} makes the host wait for a"
        f" result before it launches more ({top.get('gaps')} times).",
        float(top.get("share") or 0.0),
        "the wait disappears with the call",
        in_code="in the code: keep the value on the device, or read it once in many steps",
    )


PART = AdviceRule("synchronisations", 110, time=advise)
