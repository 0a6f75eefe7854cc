"""What limits the device, in one sentence, with its evidence."""

from __future__ import annotations

from typing import Any

from detscope.analyze.stats import percent

WORTH_NAMING = 0.15  # of the window: a smaller loss does not make a run "bound" by it
BUSY = 0.8
POOR_USE = 0.5


def device_verdict(figures: dict[str, Any]) -> dict[str, Any]:
    """`bound`, a sentence, and the shares of the window that decided."""
    losses = _losses(figures)
    use = figures["utilisation"]["compute"]
    evidence = [
        f"{name}: {percent(share, 1)} of the window" for name, share in _ranked(losses) if share > 0.001
    ]
    evidence.insert(0, f"compute kernels: {percent(use or 0.0, 1)} of the window")
    largest, share = _ranked(losses)[0]
    if share >= WORTH_NAMING and (use or 0.0) < BUSY:
        return {
            "bound": largest,
            "sentence": _sentence(largest, share, figures),
            "evidence": evidence,
            "shares": losses,
        }
    sentence = f"compute-bound: kernels keep the device busy {percent(use or 0.0)} of the time"
    efficiency = figures["sm_efficiency"]["value"]
    if (use or 0.0) < BUSY:
        sentence = (
            f"no single limit: kernels run {percent(use or 0.0)} of the time; the largest loss is"
            f" {largest} with {percent(share)}"
        )
    elif efficiency is not None and efficiency < POOR_USE * (use or 1.0):
        sentence += (
            f", but they fill only {percent(efficiency)} of its processors (estimated): kernels are small"
        )
    bound = "compute" if (use or 0.0) >= BUSY else "mixed"
    return {"bound": bound, "sentence": sentence, "evidence": evidence, "shares": losses}


def _losses(figures: dict[str, Any]) -> dict[str, float]:
    """Shares of the window that are not computing; together with compute and overlaps they make it up."""
    idle, window = figures["idle"], figures["utilisation"]["with_copies_window_ns"]
    if not window:
        return {"host": 0.0}
    return {
        "data": idle["data_ns"] / window,
        "synchronisation": idle["synchronisation_ns"] / window,
        "host": idle["host_ns"] / window,
        "queued": idle["queued_ns"] / window,
        "short gaps": idle["short_gaps_ns"] / window,
        "unknown": idle["unknown_ns"] / window,
        "copies": figures["copies"]["exposed_ns"] / window,
        "communication": figures["communication"]["exposed_ns"] / window,
    }


def _ranked(losses: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(losses.items(), key=lambda item: -item[1])


def _sentence(largest: str, share: float, figures: dict[str, Any]) -> str:
    much = percent(share)
    named = _largest_part(largest, figures)
    if largest == "data":
        return f"waiting for data: the device stands still {much} of the time while the loader makes batches"
    if largest == "synchronisation":
        return f"synchronisation: calls that wait for the device cost {much} of the time{named}"
    if largest == "host":
        return f"launch-bound: the host is late with work {much} of the time{_launches(figures)}{named}"
    if largest == "copies":
        return f"copy-bound: copies that no kernel hides take {much} of the time"
    if largest == "communication":
        return f"communication-bound: exchange that no computation hides takes {much} of the time"
    if largest == "queued":
        return f"waiting with work queued: for other streams, devices or ranks, {much} of the time"
    if largest == "short gaps":
        return f"gaps between short kernels take {much} of the time: fuse them or make batches larger"
    return f"cannot tell: the device stands still {much} of the time, and the file has no launch records"


def _largest_part(cause: str, figures: dict[str, Any]) -> str:
    """The call that costs most, where it is worth naming."""
    worst = next((row for row in figures["blame"] if row["cause"] == cause), None)
    if worst is None or (worst["share"] or 0.0) < WORTH_NAMING / 3:
        return ""
    return f"; the largest part: {worst['call']}" + (f" in {worst['module']}" if worst["module"] else "")


def _launches(figures: dict[str, Any]) -> str:
    """Many short kernels are what makes a host late."""
    launched = figures["launches"]
    if launched["median_us"] is None:
        return ""
    per = "per step" if figures["steps"] else "in all"
    return (
        f"; {launched['count']:,.0f} kernels {per}, half of them shorter than {launched['median_us']:.1f} us"
    )
