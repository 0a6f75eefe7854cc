"""How busy the device was: unions of its events over the window, numerator and denominator kept."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from detscope.analyze.device.intervals import Intervals, intersect_intervals, subtract_intervals
from detscope.analyze.device.timeline import DeviceTimeline
from detscope.analyze.figure import Figure

_STEPS = (
    "the measured steps; the first begins when the device is done with earlier work, the last ends with the"
    " last event that was launched in it"
)
_NO_STEPS = (
    "there are no step marks: from the begin of the first to the end of the last event that the figure counts"
)


class BusyTimes(Figure, frozen=True, kw_only=True):
    """How long a device was busy inside its window: lengths of unions of events, and their shares of it."""

    kernels: float | None  # kernels_ns over window_ns
    with_copies: float | None  # with_copies_ns over with_copies_window_ns, as are the two that follow
    copies: float | None  # copies_ns over the window
    compute: float | None  # compute_ns over the window
    kernels_ns: int  # union of all kernels
    window_ns: int  # of all devices
    with_copies_ns: int  # kernels, copies and memory sets
    with_copies_window_ns: int  # of the same
    compute_ns: int  # kernels that are not communication
    communication_ns: int  # collective kernels
    copies_ns: int  # union of copies
    copies_exposed_ns: int  # while no kernel ran
    sets_ns: int  # union of memory sets


class UseDefinitions(Figure, frozen=True, kw_only=True):
    """What the shares of the window are."""

    kernels: str = "length of the union of all kernels inside the window, over the window's length"
    with_copies: str = "the same of kernels, copies and memory sets together"
    copies: str = "the same of copies alone"
    compute: str = "the same of kernels that are not communication"


class Utilisation(BusyTimes, frozen=True, kw_only=True):
    """All devices together: summed numerators over summed denominators."""

    window: str  # what it is made of
    definition: UseDefinitions = UseDefinitions()


class DeviceSpan(Figure, frozen=True, kw_only=True):
    """From the first event of a device to its last, whatever the steps: how other tools count."""

    span_ns: int  # from the first event to the last
    busy_ns: int  # union of all events
    idle_ns: int  # the rest
    kernels_ns: int  # union of all kernels
    compute_ns: int  # kernels that are not communication
    communication_ns: int  # collective kernels
    events: int  # kernels, copies and memory sets


def divide_safely(part: float, whole: float) -> float | None:
    """A ratio, or None where there is no whole."""
    return part / whole if whole else None


def measure_use(line: DeviceTimeline) -> BusyTimes:
    """Busy times of one device inside its window."""
    window, kernels, copies = line.window, line.kernels, line.copies
    kernel_window = window if line.has_steps else _span_of(kernels)
    return _with_shares(
        {
            "kernels_ns": intersect_intervals(kernels, kernel_window).length_ns,
            "window_ns": kernel_window.length_ns,
            "with_copies_ns": intersect_intervals(line.busy, window).length_ns,
            "with_copies_window_ns": window.length_ns,
            "compute_ns": intersect_intervals(line.compute, window).length_ns,
            "communication_ns": intersect_intervals(line.communication, window).length_ns,
            "copies_ns": intersect_intervals(copies, window).length_ns,
            "copies_exposed_ns": intersect_intervals(subtract_intervals(copies, kernels), window).length_ns,
            "sets_ns": intersect_intervals(line.sets, window).length_ns,
        }
    )


def _span_of(intervals: Intervals) -> Intervals:
    return Intervals(intervals.starts[:1], intervals.ends[-1:])


def _with_shares(lengths: dict[str, int]) -> BusyTimes:
    window_ns = lengths["with_copies_window_ns"]
    return BusyTimes(
        kernels=divide_safely(lengths["kernels_ns"], lengths["window_ns"]),
        with_copies=divide_safely(lengths["with_copies_ns"], window_ns),
        copies=divide_safely(lengths["copies_ns"], window_ns),
        compute=divide_safely(lengths["compute_ns"], window_ns),
        **lengths,
    )


def sum_uses(uses: Sequence[BusyTimes], has_steps: bool) -> Utilisation:
    """The headline over all devices."""
    lengths = [name for name in BusyTimes.__struct_fields__ if name.endswith("_ns")]
    whole = _with_shares({name: sum(getattr(use, name) for use in uses) for name in lengths})
    return Utilisation(**msgspec.structs.asdict(whole), window=_STEPS if has_steps else _NO_STEPS)


def measure_span(line: DeviceTimeline) -> DeviceSpan:
    """The span of a device's events."""
    busy = line.busy
    return DeviceSpan(
        span_ns=busy.span_ns,
        busy_ns=busy.length_ns,
        idle_ns=busy.span_ns - busy.length_ns,
        kernels_ns=line.kernels.length_ns,
        compute_ns=line.compute.length_ns,
        communication_ns=line.communication.length_ns,
        events=line.events.height,
    )
