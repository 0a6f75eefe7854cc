"""A step to look into: the median one, the slowest, the first; a table of their longest spans."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.drawing import ReportData
from detscope.analyze.timeline.figures import DrawnStep, RunTimeline
from detscope.report.clock_blocks import IDLE_CAUSES
from detscope.report.colours import (
    BLUE,
    CATEGORY_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PHASE_COLOURS,
    PINK,
    SKY,
    YELLOW,
    paler,
)
from detscope.report.figures import with_unit
from detscope.report.model import Column, Section, Table, Timeline, Value
from detscope.report.sections import SectionPart

LONGEST = 15  # spans of each step in the table
_DEFINITION = (
    "Real steps, as they were recorded: every span from its begin to its end. On the picture: w and s or the"
    " wheel zoom, a and d or dragging move, 0 shows all, a click pins a span, Enter in the search goes to the"
    " next one."
)
_COLOURS = {
    **PHASE_COLOURS,
    "recompute": PINK,
    "operator": paler(BLUE, 0.35),
    "module": SKY,
    "annotation": GREY,
    "kernel": GREEN,
    "copy": YELLOW,
    "set": GREY,
    "sync": PINK,
    "communication": PINK,
    "wait": ORANGE,
    "loader": ORANGE,
    "loader batch": paler(GREY, 0.4),
    "loader load": GREY,
    "loader decode": BLUE,
    "loader transform": ORANGE,
    "loader collate": GREEN,
    **{f"idle {name}": colour for name, (_, colour) in IDLE_CAUSES.items()},
}


def section(data: ReportData) -> Section | None:
    """Steps to look into; None where no span was recorded."""
    found = data.timeline
    if found is None:
        return None
    label = "What ran when in " + ", ".join(_name_step(step) for step in found.steps)
    block = Timeline("timeline-picture", label, found, _choose_colours(found.groups), CATEGORY_COLOURS)
    return Section(
        "timeline",
        "Timeline",
        _tell_steps(found),
        _tell_choice(found) + _DEFINITION,
        [block, _longest(found)],
    )


def _choose_colours(groups: Sequence[str]) -> list[str]:
    stages = [group for group in groups if group.startswith("stage ")]
    shades = {group: PALETTE[place % len(PALETTE)] for place, group in enumerate(stages)}
    return [_COLOURS.get(group) or shades.get(group) or GREY for group in groups]


def _name_step(step: DrawnStep) -> str:
    return step.title if step.step is None else f"step {step.step} ({step.title})"


def _tell_steps(found: RunTimeline) -> str:
    told = [f"{step.title} {with_unit(step.wall_ns / 1e6, 'ms')}" for step in found.steps]
    text = "; ".join(told)
    return f"Inside a step: {text}"


def _tell_choice(found: RunTimeline) -> str:
    """Said where the spans of some steps were not kept: the choice is then among the others."""
    if found.drawn >= found.measured or not found.drawn:
        return ""
    return (
        f"The spans of {found.drawn} of {found.measured} measured steps were kept; the median step here is"
        " the one of these that is nearest to the median of all. "
    )


def _longest(found: RunTimeline) -> Table:
    """For those without scripts or a screen: where the time went, by own time."""
    columns = [
        Column("Span", "code"),
        Column("step"),
        Column("lane"),
        Column("what"),
        Column("begins at ms", "ms"),
        Column("ms", "ms"),
        Column("own ms", "ms"),
        Column("share of the step", "share"),
    ]
    rows: list[list[Value]] = []
    for step in found.steps:
        rows += _longest_of(found, step)
    caption = f"The {LONGEST} spans of each step that took most time themselves, without those inside them"
    return Table("timeline-table", caption, columns, rows, searchable=True, unfolded=True)


def _longest_of(found: RunTimeline, step: DrawnStep) -> list[list[Value]]:
    spans: list[tuple[int, list[Value]]] = []
    named = "all" if step.step is None else str(step.step)
    for lane in step.lanes:
        if lane.title == "Phases" and len(step.lanes) > 1:
            continue  # the step's own section tells them
        own = lane.own_lengths
        for place in own.argsort(kind="stable")[::-1][:LONGEST].tolist():
            length = int(lane.lengths[place])
            about = (named, lane.title, found.groups[lane.groups[place]].replace("_", " "))
            times = (int(lane.starts[place]) / 1e6, length / 1e6, int(own[place]) / 1e6)
            text = found.names[lane.names[place]].text
            spans.append((int(own[place]), [text, *about, *times, length / max(1, step.wall_ns)]))
    spans.sort(key=lambda pair: -pair[0])
    return [row for _, row in spans[:LONGEST]]


PART = SectionPart("timeline", 55, section)
