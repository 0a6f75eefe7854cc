"""How busy the device was: unions of its events over the window, numerator and denominator kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detscope.analyze.device.intervals import Intervals, intersect, subtract
from detscope.analyze.device.timeline import Timeline

COMPUTE = "kernels that are not communication"


def share(part: float, whole: float) -> float | None:
    """A ratio, or None where there is no whole."""
    return part / whole if whole else None


def use_of(line: Timeline) -> dict[str, Any]:
    """Busy times of one device inside its window; lengths of unions, in ns."""
    window, kernels, busy = line.window, line.kernels, line.busy
    kernel_window = window if line.has_steps else _span(kernels)
    copies = line.copies
    return {
        "kernels_ns": intersect(kernels, kernel_window).length_ns,
        "window_ns": kernel_window.length_ns,
        "with_copies_ns": intersect(busy, window).length_ns,
        "with_copies_window_ns": window.length_ns,
        "compute_ns": intersect(line.compute, window).length_ns,
        "communication_ns": intersect(line.communication, window).length_ns,
        "copies_ns": intersect(copies, window).length_ns,
        "copies_exposed_ns": intersect(subtract(copies, kernels), window).length_ns,
        "sets_ns": intersect(line.sets, window).length_ns,
    }


def _span(intervals: Intervals) -> Intervals:
    if len(intervals) == 0:
        return intervals
    return Intervals(intervals.starts[:1], intervals.ends[-1:])


def utilisation_figures(uses: Sequence[dict[str, Any]], has_steps: bool) -> dict[str, Any]:
    """The headline over all devices: summed numerators over summed denominators."""
    total = {key: sum(use[key] for use in uses) for key in uses[0]}
    return {
        "kernels": share(total["kernels_ns"], total["window_ns"]),
        "with_copies": share(total["with_copies_ns"], total["with_copies_window_ns"]),
        "copies": share(total["copies_ns"], total["with_copies_window_ns"]),
        "compute": share(total["compute_ns"], total["with_copies_window_ns"]),
        **total,
        "window": _window_words(has_steps),
        "definition": {
            "kernels": "length of the union of all kernels inside the window, over the window's length",
            "with_copies": "the same of kernels, copies and memory sets together",
            "copies": "the same of copies alone",
            "compute": f"the same of {COMPUTE}",
        },
    }


def _window_words(has_steps: bool) -> str:
    if has_steps:
        return (
            "the measured steps; the first begins when the device is done with earlier work, the last ends"
            " with the last event that was launched in it"
        )
    return (
        "there are no step marks: from the begin of the first to the end of the last event that the figure"
        " counts"
    )


def span_figures(line: Timeline) -> dict[str, int]:
    """From the first event of a device to its last, whatever the steps: how other tools count."""
    busy = line.busy
    return {
        "span_ns": busy.span_ns,
        "busy_ns": busy.length_ns,
        "idle_ns": busy.span_ns - busy.length_ns,
        "kernels_ns": line.kernels.length_ns,
        "compute_ns": line.compute.length_ns,
        "communication_ns": line.communication.length_ns,
        "events": line.events.height,
    }
