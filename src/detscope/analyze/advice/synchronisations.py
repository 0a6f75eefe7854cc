"""Calls that make the device wait for the host."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, Case


def advise(case: Case) -> Advice | None:
    """The costliest call that emptied the device's queue."""
    device = case.summary.get("device_use") or case.summary.get("device")
    blame = device.get("blame") if isinstance(device, dict) else None
    if not blame:
        return None
    top = blame[0]
    cost = float(top.get("ms_per_step") or top.get("cost_ms") or 0.0)
    where = top.get("module") or top.get("line") or "unknown place"
    return Advice(
        "synchronisations",
        f"avoid {top.get('call')} in {where}",
        f"The device waits {cost:.2f} ms per step after {top.get('call')}, which makes the host read a result"
        f" before it can launch more ({top.get('count')} times).",
        cost / case.step_ms,
        "the wait disappears with the call",
        elsewhere="in the code: keep the value on the device, or read it once in many steps",
    )
