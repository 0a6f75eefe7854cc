"""What lies between the device's clock and the host's, as blocks of a section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detscope.analyze.device.blame import HostWait
from detscope.analyze.step.clocks import ClockAgreement, Clocks
from detscope.report.colours import BLUE, GREY, ORANGE, PINK, RED, SKY, YELLOW, one_bar
from detscope.report.figures import CANNOT_TELL, number, percent, with_unit
from detscope.report.model import Axis, Block, Chart, Column, Fact, Facts, Table, Value

# why a device stands idle: its words and its colour, the same in every view
IDLE_CAUSES = {
    "data": ("waiting for data", ORANGE),
    "synchronisation": ("synchronisation", RED),
    "host": ("host late with launches", YELLOW),
    "queued": ("work queued, not begun", PINK),
    "short_gaps": ("short gaps between events", SKY),
    "unknown": ("unknown: no launch record", GREY),
}
BY_MARKS = (
    "The device's own time, by marks in its queue. From when it came to a mark until the host had queued what"
    " comes before the next it may have stood idle: idle time is at most so much, and the rest is work. The"
    " waiting for data is exact."
)


def clock_title(clocks: Clocks) -> str:
    """How much the device works, with the word for what limits the step."""
    least = "at least " if _is_bounded(clocks) else ""
    words = f"device works {least}{percent(clocks.busy_share)} of its step"
    return f"{clocks.bound.capitalize()}: the {words}" if clocks.bound else f"The {words}"


def _is_bounded(clocks: Clocks) -> bool:
    """Whether idle time is known by an upper bound alone."""
    return any(cause.at_most for cause in clocks.idle)


def clock_blocks(clocks: Clocks) -> Iterator[Block]:
    """What lies between the device's clock and the host's."""
    if clocks.clock == "host" or clocks.device_step_ms is None:
        return
    yield Facts(list(_clock_facts(clocks)))
    busy = [("working", clocks.busy_ms or 0.0, BLUE)]
    idle = [
        (f"idle: {IDLE_CAUSES[cause.name][0]}", cause.ms, IDLE_CAUSES[cause.name][1])
        for cause in clocks.idle
        if cause.ms
    ]
    label = "The device's step: work, and idle time by cause"
    yield Chart("device-step", label, one_bar([*busy, *idle]), Axis("ms"), Axis(hidden=True), height=170)
    least = "at least" if _is_bounded(clocks) else ""
    rows: list[list[Value]] = [["working", clocks.busy_ms, clocks.busy_share, least]]
    rows += [
        [f"idle: {IDLE_CAUSES[cause.name][0]}", cause.ms, cause.share, "at most" if cause.at_most else ""]
        for cause in clocks.idle
    ]
    columns = [Column("what"), Column("ms", "ms"), Column("share", "share", bar=True), Column("")]
    yield Table("device-step-table", "The device's step", columns, rows)
    if clocks.host_waits:
        yield _waits_table(clocks.host_waits)
    if clocks.agreement:
        yield _agreement_table(clocks.agreement)


def _clock_facts(clocks: Clocks) -> Iterator[Fact]:
    if clocks.bound is not None and (clocks.source == "marks" or clocks.agreement):  # else kernels say it
        yield Fact("limited by", f"{clocks.bound}: {', '.join(clocks.evidence)}", "strong")
    idle = ", ".join(
        f"{IDLE_CAUSES[cause.name][0]} {'at most ' if cause.at_most else ''}{with_unit(cause.ms, 'ms')}"
        for cause in clocks.idle
        if cause.ms or cause.name == "data"
    )
    whole = f"{with_unit(clocks.device_step_ms, 'ms')} a step, {clocks.n} steps, by {clocks.source}"
    yield Fact("device", f"{whole}; idle: {idle}")
    yield Fact("host", f"{with_unit(clocks.host_ahead_ms, 'ms')} ahead when it has queued a step")
    if clocks.host_waits_ms is None:
        yield Fact("host", f"waiting for the device: {CANNOT_TELL}: {clocks.host_waits_why}")
    else:
        longest = ", ".join(
            f"{_name_wait(wait)} {with_unit(wait.ms, 'ms')}" for wait in clocks.host_waits[:3]
        )
        where = f", most in {longest}" if longest else ""
        yield Fact("host", f"waits for the device {with_unit(clocks.host_waits_ms, 'ms')} a step{where}")
    if clocks.side_streams:
        beside = ", ".join(
            f"{one.phase} {with_unit(one.ms, 'ms')} on stream {one.stream}" for one in clocks.side_streams
        )
        yield Fact("beside", f"what other streams did: {beside}")
    if clocks.marks_per_step is not None and clocks.mark_us is not None:
        cost = f"{number(clocks.marks_per_step, 0)} a step at {number(clocks.mark_us)} us of the host each"
        share = f": {percent(clocks.marks_share)} of the step" if clocks.marks_share is not None else ""
        without = f"; modules that take less: {len(clocks.below_mark)}" if clocks.below_mark else ""
        without += f"; without a turn yet: {len(clocks.unmarked)}" if clocks.unmarked else ""
        yield Fact("marks", f"{cost}{share}{without}")
    apart = [abs(one.ratio - 1) for one in clocks.agreement if one.ratio is not None]
    if apart:
        yield Fact("marks", f"agree with kernels within {percent(max(apart))} in every phase and stage")


def _name_wait(wait: HostWait) -> str:
    return wait.call + (f" in {wait.module}" if wait.module else "")


def _waits_table(waits: Sequence[HostWait]) -> Table:
    columns = [Column("call", "code"), Column("where", "code"), Column("ms per step", "ms")]
    columns.append(Column("times", "count"))
    body: list[list[Value]] = [
        [wait.call, wait.module or wait.line or wait.runtime, wait.ms, wait.calls] for wait in waits
    ]
    return Table("host-waits", "Where the host waited for the device", columns, body)


def _agreement_table(agreement: Sequence[ClockAgreement]) -> Table:
    columns = [Column("what"), Column("name", "code"), Column("by marks ms", "ms")]
    columns += [Column("at most idle ms", "ms"), Column("by kernels ms", "ms"), Column("ratio", "number")]
    body: list[list[Value]] = [
        [one.kind, one.name, one.marks_ms, one.marks_idle_ms, one.kernels_ms, one.ratio] for one in agreement
    ]
    return Table("clock-agreement", "Marks beside kernels, ms per step", columns, body)
