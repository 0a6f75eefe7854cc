"""What a rule sees that looks at lines of code, and how it says what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.analyze.advice.case import Case
from detscope.analyze.findings.census import WAITS, CensusFigures, CensusPlace
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


@dataclass(frozen=True)
class LineCase:
    """A run with its census."""

    case: Case  # the run's figures and settings, as other rules see them
    census: CensusFigures
    facts: dict[str, Any]  # that patterns of the census wrote down, by their names

    @property
    def summary(self) -> RunSummary:
        """The run's figures."""
        return self.case.summary

    def places(
        self, *kinds: str, accept: Callable[[CensusPlace], bool] = lambda _place: True
    ) -> list[CensusPlace]:
        """Places of these kinds, waits first."""
        return [one for one in self.census.places if (not kinds or one.kind in kinds) and accept(one)]

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
        first = max(rows, key=lambda row: row.count, default=None)
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

    @property
    def verify_command(self) -> str:
        """What tries a change of the code."""
        return f"detscope try {self.summary.run} --patch CHANGE.diff" if self.summary.rerun else ""


def _distinct_places(rows: Sequence[CensusPlace]) -> tuple[CodePlace, ...]:
    counts: dict[CodePlace, float] = {}
    for row in rows:
        counts[row.where] = counts.get(row.where, 0.0) + row.count
    return tuple(sorted(counts, key=lambda place: -counts[place]))
