"""The findings of a run in a few thousand bytes: as many as fit, whole, and how to see the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from detscope.analyze.figure import Figure
from detscope.analyze.findings.finding import ASSUMES, Finding
from detscope.analyze.summary import SUMMARY_SCHEMA, RunSummary
from detscope.runs.standard_json import as_standard_json

MOST_BYTES = 8000  # on a terminal and in JSON
USUAL = 10  # findings that are told unless one asks for more
Told = TypeVar("Told")


class RunFindings(Figure, frozen=True, kw_only=True):
    """What costs time in a run, and where."""

    schema: int = SUMMARY_SCHEMA  # a change that breaks readers raises it
    run: str  # its folder
    steps: tuple[int, ...]  # in which waits and launches were counted; none: the run has no census
    waits: float | None  # of the host for the device, per step; None without a census
    launches: float | None  # of operators on the device, per step; None without a census
    findings: tuple[Finding, ...]  # most costly first
    left_out: int  # findings that are not listed here
    see_all: str | None  # a command that lists them all; None where none were left out
    make_census: str | None  # a command that counts waits and launches by line, where this run did not
    assumes: str  # what the estimates for a device rest on


def list_findings(
    summary: RunSummary, name: str, limit: int = USUAL, most_bytes: int | None = MOST_BYTES
) -> RunFindings:
    """The first findings, at most so many and in so many bytes of JSON; `name` is what verbs take."""

    def take(count: int) -> RunFindings:
        census, left = summary.census, len(summary.findings) - count
        return RunFindings(
            run=summary.run,
            steps=() if census is None else census.steps,
            waits=None if census is None else census.waits,
            launches=None if census is None else census.find_count("launch"),
            findings=summary.findings[:count],
            left_out=left,
            see_all=f"detscope why {name} --limit {len(summary.findings)}" if left else None,
            make_census=None if census is not None else census_command(summary),
            assumes=ASSUMES,
        )

    return fit_whole(take, len(summary.findings[:limit]), most_bytes, lambda told: len(dump_line(told)))


def dump_line(told: Figure) -> bytes:
    """JSON on one line: half as long as over many."""
    text = json.dumps(as_standard_json(told), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def fit_whole(
    take: Callable[[int], Told], most: int, most_bytes: int | None, size_of: Callable[[Told], int]
) -> Told:
    """As many findings as have room."""
    for count in range(most, 0, -1):
        told = take(count)
        if most_bytes is None or size_of(told) <= most_bytes:
            return told
    return take(0)


def census_command(summary: RunSummary) -> str | None:
    """The same run again with a census; None where nobody could make it again."""
    rerun = summary.rerun
    if not rerun:
        return None
    script = rerun.removeprefix("detscope run ")
    return f"{rerun} --census" if script == rerun else f"detscope run --census {script}"
