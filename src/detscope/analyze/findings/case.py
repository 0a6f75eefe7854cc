"""What a rule sees that looks at lines of code, and how it says what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detscope.analyze.advice.case import Case
from detscope.analyze.findings.census import WAITS, CensusFigures, CensusPlace
from detscope.analyze.findings.diffs import Rewrite, Statement, make_diff, read_statement
from detscope.analyze.findings.finding import (
    Confidence,
    Finding,
    FindingEvidence,
    estimate_device,
    make_id,
)
from detscope.analyze.step.beside import CodePlace

if TYPE_CHECKING:
    from detscope.analyze.summary import RunSummary

OUR_LOOPS = "detscope/loops/"  # as the census names their files


@dataclass(frozen=True)
class LineCase:
    """A run with its census."""

    case: Case  # the run's figures and settings, as other rules see them
    census: CensusFigures
    facts: dict[str, Any]  # that patterns of the census wrote down, by their names
    statements: dict[str, Statement] = field(default_factory=dict)  # of lines that wait, as `loss.py:41`

    @property
    def summary(self) -> RunSummary:
        """The run's figures."""
        return self.case.summary

    def places(
        self, *kinds: str, accept: Callable[[CensusPlace], bool] = lambda _place: True
    ) -> list[CensusPlace]:
        """Places of these kinds, waits first; what our own loops do is nothing that a user could change."""
        theirs = (one for one in self.census.places if not one.where.file.startswith(OUR_LOOPS))
        return [one for one in theirs if (not kinds or one.kind in kinds) and accept(one)]

    def by_function(self, places: Sequence[CensusPlace]) -> list[list[CensusPlace]]:
        """The same, those of one function together, most counted first."""
        groups: dict[tuple[str, str], list[CensusPlace]] = {}
        for place in places:
            groups.setdefault((place.where.file, place.where.function), []).append(place)
        return sorted(groups.values(), key=lambda rows: -sum(row.count for row in rows))

    def make_finding(
        self,
        rule: str,
        rows: Sequence[CensusPlace],
        claim: str,
        change: str,
        *,
        confidence: Confidence | None = "certain",
        cannot_tell: str | None = None,
        text: str = "",
        waits: float | None = None,  # of the host per step; None: as the rows have them
        launches: float | None = None,  # that would be saved per step; None: as the rows have them
        diff: str | None = None,
    ) -> Finding:
        """A finding about these rows: what they cost, and what they would on a device."""
        where = _distinct_places(rows)
        if waits is None:
            waits = sum(row.count for row in rows if row.kind in WAITS)
        if launches is None:
            launches = sum(row.count for row in rows if row.kind == "launch")
        size = sum(row.bytes for row in rows if row.kind in ("feed", "copy"))
        own = max(rows, key=lambda row: row.count).own if rows else None
        first = next((row for row in rows if row.where == where[0]), None)
        return Finding(
            id=make_id(rule, where),
            rule=rule,
            claim=claim,
            where=where,
            called_from=None if own is None or own in where else own,
            code=None if first is None else first.code or None,
            evidence=FindingEvidence(
                table="census",
                rows=sum(row.rows for row in rows),
                steps=tuple(sorted({step for row in rows for step in row.steps})),
                text=text,
            ),
            cost_ms=sum(row.host_ms for row in rows),
            cost_low_ms=sum(row.host_low_ms for row in rows),
            cost_high_ms=sum(row.host_high_ms for row in rows),
            on_device=estimate_device(waits, launches, size),
            confidence=confidence,
            cannot_tell=cannot_tell,
            change=change,
            diff=diff,
            verify=self.verify_command,
        )

    def write_diff(self, rows: Sequence[CensusPlace], rewrite: Rewrite) -> str | None:
        """The change of all lines of these rows, where each is exactly what is expected."""
        lines = dict.fromkeys(f"{row.where.file}:{row.where.line}" for row in rows)
        return make_diff([self.statements.get(line) for line in lines], rewrite)

    def write_constructor_diff(
        self, names: Sequence[str], rewrite: Rewrite, word: str = "", most: int = 1
    ) -> str | None:
        """The change of what is made by these names, with this word, in the script's own code.

        None where more is made than `most`: nobody knows which of them it is about.
        """
        calls = (self.facts.get("constructors") or {}).get("calls") or ()
        made = [one for one in calls if one["called"] in names and word in one["code"]]
        told = [read_statement(one.get("statement")) for one in made]
        return make_diff(told, rewrite) if len(made) <= most else None

    @property
    def verify_command(self) -> str:
        """What tries a change of the code."""
        return f"detscope try {self.summary.run} --patch CHANGE.diff" if self.summary.rerun else ""


def _distinct_places(rows: Sequence[CensusPlace]) -> tuple[CodePlace, ...]:
    counts: dict[CodePlace, float] = {}
    for row in rows:
        counts[row.where] = counts.get(row.where, 0.0) + row.count
    return tuple(sorted(counts, key=lambda place: -counts[place]))
