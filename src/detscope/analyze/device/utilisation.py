"""How busy the device was: unions of its events over the window, numerator and denominator kept."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from detscope.analyze.device.intervals import (
    Intervals,
    intersect_intervals,
    merge_intervals,
    subtract_intervals,
)
from detscope.analyze.device.timeline import DeviceTimeline, event_borders
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
    compute: float | None  # compute_ns over window_ns
    linked: float | None  # linked_ns over window_ns
    kernels_ns: int  # union of all kernels
    linked_ns: int  # union of the kernels whose launch was recorded
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
    linked: str = "the same of kernels whose launch was recorded; of all others nobody knows the place"


class TensorBoardUse(Figure, frozen=True, kw_only=True):
    """Utilisation by the rule of TensorBoard's profiler page, whose window has the pauses between steps."""

    kernels: float | None  # kernels_ns over window_ns
    kernels_ns: int  # union of all kernels inside
    window_ns: int  # of all devices
    left_out_steps: int  # at the end, with no work or much less than the step before
    definition: str = (
        "length of the union of all kernels from the first step's begin to the last step's end, over that"
        " time; a step ends with the last event whose launch lies in it; steps at the end that launched"
        " nothing, and the last one if it launched less than 80 % of the one before, are left out"
    )


class Utilisation(BusyTimes, frozen=True, kw_only=True):
    """All devices together: summed numerators over summed denominators."""

    window: str  # what it is made of
    tensorboard: TensorBoardUse | None  # None where there are no step marks
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
    window, kernel_window = line.window, line.kernel_window
    exposed = subtract_intervals(line.copies, line.kernels)
    lengths = {
        "window_ns": kernel_window.length_ns,
        "with_copies_window_ns": window.length_ns,
        **{
            name: intersect_intervals(part, within).length_ns
            for name, part, within in (
                ("kernels_ns", line.kernels, kernel_window),
                ("linked_ns", line.linked_kernels, kernel_window),
                ("compute_ns", line.compute, kernel_window),
                ("communication_ns", line.communication, kernel_window),
                ("with_copies_ns", line.busy, window),
                ("copies_ns", line.copies, window),
                ("copies_exposed_ns", exposed, window),
                ("sets_ns", line.sets, window),
            )
        },
    }
    return _with_shares(lengths)


def _with_shares(lengths: dict[str, int]) -> BusyTimes:
    of_kernels, of_all = lengths["window_ns"], lengths["with_copies_window_ns"]
    return BusyTimes(
        kernels=divide_safely(lengths["kernels_ns"], of_kernels),
        with_copies=divide_safely(lengths["with_copies_ns"], of_all),
        copies=divide_safely(lengths["copies_ns"], of_all),
        compute=divide_safely(lengths["compute_ns"], of_kernels),
        linked=divide_safely(lengths["linked_ns"], of_kernels),
        **lengths,
    )


def sum_uses(uses: Sequence[BusyTimes], lines: Sequence[DeviceTimeline]) -> Utilisation:
    """The headline over all devices."""
    lengths = [name for name in BusyTimes.__struct_fields__ if name.endswith("_ns")]
    whole = _with_shares({name: sum(getattr(use, name) for use in uses) for name in lengths})
    has_steps = all(line.has_steps for line in lines)
    return Utilisation(
        **msgspec.structs.asdict(whole),
        window=_STEPS if has_steps else _NO_STEPS,
        tensorboard=measure_by_tensorboard(lines) if has_steps else None,
    )


def measure_by_tensorboard(lines: Sequence[DeviceTimeline]) -> TensorBoardUse:
    """The same devices by TensorBoard's rule; they have steps."""
    kernels_ns = window_ns = left_out = 0
    for rank in sorted({line.rank for line in lines}):
        own = [line for line in lines if line.rank == rank]
        span, dropped = _find_tensorboard_span(own)
        left_out += dropped
        for line in own:
            if len(line.kernels):
                kernels_ns += intersect_intervals(line.kernels, span).length_ns
                window_ns += span.length_ns
    return TensorBoardUse(
        kernels=divide_safely(kernels_ns, window_ns),
        kernels_ns=kernels_ns,
        window_ns=window_ns,
        left_out_steps=left_out,
    )


def _find_tensorboard_span(lines: Sequence[DeviceTimeline]) -> tuple[Intervals, int]:
    """From the first step of a rank to the last that counts, and how many do not."""
    steps = lines[0].steps
    columns = ("start_ns", "wall_ns", "launch_ns", "launch_wall_ns")
    events = pl.concat([line.events.select(columns) for line in lines])
    begins, ends = event_borders(events)
    call, length = (events[name].fill_null(-1).to_numpy().astype(np.int64) for name in columns[2:])
    owner = np.searchsorted(steps.host_starts, call, side="right") - 1
    inside = (owner >= 0) & events["launch_ns"].is_not_null().to_numpy()
    inside &= call + np.maximum(length, 0) <= steps.host_ends[np.maximum(owner, 0)]
    launched = np.bincount(owner[inside], minlength=len(steps))
    until = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(until, owner[inside], ends[inside])
    step_ends = np.maximum.accumulate(np.maximum(steps.host_ends, until))
    start = int(steps.host_starts[0])
    if launched[0]:  # work queued before the first step may still run when it begins
        earlier = ends[~inside & (ends < begins[inside & (owner == 0)].min())]
        start = int(earlier.max(initial=start))
    kept = len(steps)
    if launched.any() and kept > 1:
        kept = int(np.flatnonzero(launched)[-1]) + 1
        kept -= kept > 1 and launched[kept - 2] * 0.8 > launched[kept - 1]
    return merge_intervals(np.array([start]), step_ends[kept - 1 : kept]), len(steps) - int(kept)


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
