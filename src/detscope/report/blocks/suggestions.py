"""What to change, as one list: findings at lines of code and advice on the whole run, largest first."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from detscope.analyze.advice.case import Advice
from detscope.analyze.findings.finding import Finding, name_function
from detscope.analyze.step.beside import CodePlace
from detscope.analyze.summary import RunSummary
from detscope.report.figures import with_unit


@dataclass(frozen=True)
class OrderedSuggestion:
    """Something to change, with where it is and what a person has to do."""

    title: str
    place: str  # a line of code, as it stands there; empty where it is about the whole run
    evidence: str
    gain: str
    how: str  # for people: what to change where the command alone does not
    command: str
    about: Literal["time", "memory"]


def list_suggestions(summary: RunSummary, name: str = "") -> list[OrderedSuggestion]:
    """In the order of `findings`; in commands the run is called `name` where that is given."""
    costly = list(takewhile(lambda one: one.where, summary.findings))
    small = [one for one in summary.findings[len(costly) :] if one.where]
    told = {one.rule for one in (*costly, *small)}
    advice = [row for row in summary.advice if row.worth and row.rule not in told]
    return [
        *(_suggest_at_line(one, summary, name) for one in costly),
        *(_suggest_advice(row, summary, name) for row in advice if row.about == "time"),
        *(_suggest_at_line(one, summary, name) for one in small),
        *(_suggest_advice(row, summary, name) for row in advice if row.about == "memory"),
    ]


def place_text(place: CodePlace) -> str:
    """`loss.py:41 check_boxes`."""
    return f"{place.file}:{place.line} {name_function(place)}".rstrip()


def places_text(finding: Finding) -> str:
    """The first line, and how many more there are."""
    more = len(finding.where) + finding.more_places - 1
    others = f" and {more} more line{'s' if more > 1 else ''}" if more > 0 else ""
    return place_text(finding.where[0]) + others if finding.where else ""


def device_text(finding: Finding) -> str:
    """`about 0.66 ms: 22 waits`; empty where nothing is known."""
    cost = finding.on_device
    if cost is None:
        return ""
    parts = [(cost.waits, "wait"), (cost.launches, "launch")]
    told = [f"{many:,.4g} {word}{_plural(word) if many != 1 else ''}" for many, word in parts if many]
    told += [with_unit(cost.bytes, "bytes")] if cost.bytes else []
    return f"about {with_unit(cost.ms, 'ms')}" + (f": {', '.join(told)}" if told else "")


def assumed_text(finding: Finding) -> str:
    """The cost on a device, with what it assumes beside what all such estimates do."""
    own = finding.on_device.assumes if finding.on_device is not None else None
    return device_text(finding) + (f"; assumes {own}" if own else "")


def name_in_command(command: str, summary: RunSummary, name: str) -> str:
    """A command with the run's short name in the place of its folder or of its settings' file."""
    if not name:
        return command
    settings_file = shlex.quote(str(Path(summary.run) / "config.toml"))
    return command.replace(settings_file, name).replace(f"try {summary.run} ", f"try {name} ")


def _plural(word: str) -> str:
    return "es" if word.endswith("ch") else "s"


def _suggest_at_line(finding: Finding, summary: RunSummary, name: str) -> OrderedSuggestion:
    place = places_text(finding) + (f": {finding.code}" if finding.code else "")
    cost = device_text(finding)
    return OrderedSuggestion(
        title=finding.claim,
        place=place,
        evidence=finding.evidence.text,
        gain=f"{cost.split(':')[0]} on a device" if finding.device_ms else "",
        how=finding.change,
        command=name_in_command(finding.verify, summary, name),
        about="time",
    )


def _suggest_advice(row: Advice, summary: RunSummary, name: str) -> OrderedSuggestion:
    whole = "the step" if summary.step_ms.p50 else "the device's time"
    gain = f"saves up to {row.gain_share * 100:.0f} % of {whole}" if row.gain_share is not None else ""
    if not gain and row.saves_bytes is not None:
        gain = f"saves {'up to ' if row.at_most else ''}{with_unit(row.saves_bytes, 'bytes')} of the peak"
    command = name_in_command(row.command, summary, name)
    return OrderedSuggestion(row.title, "", row.evidence, gain, row.how, command, row.about)
