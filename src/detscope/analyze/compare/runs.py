"""Runs against a base: each by itself, all as a trend, and gates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from detscope.analyze.compare.figures import read_figures
from detscope.analyze.compare.gate import Gate, judge_gate
from detscope.analyze.compare.sides import RunComparison, compare_sides
from detscope.analyze.compare.trend import Order, Trend, follow_runs
from detscope.analyze.compare.variation import find_variation
from detscope.analyze.figure import Figure
from detscope.runs.reader import Run


class ComparisonResult(Figure, frozen=True, kw_only=True):
    """Runs against a base, each by itself."""

    base: str  # its folder
    comparisons: list[RunComparison]  # one per later run
    trend: Trend | None = None  # of three runs and more
    failed: list[str]  # gates that failed

    @property
    def undecided_gates(self) -> list[str]:
        """Gates about changes that cannot be told from noise."""
        return [gate.gate for one in self.comparisons for gate in one.gates if gate.outcome == "cannot tell"]


def compare_runs(
    base: Run, others: Sequence[Run], gates: Sequence[Gate] = (), by: Order = "time"
) -> ComparisonResult:
    """Every other run against the first; of three and more their trend."""
    first, known = read_figures(base), find_variation(base)
    later = [read_figures(other) for other in others]
    found = gather_comparisons(base, [compare_sides([first], [one], known) for one in later], gates)
    if len(later) < 2:
        return found
    return msgspec.structs.replace(found, trend=follow_runs([first, *later], known, by))


def gather_comparisons(
    base: Run, found: Sequence[RunComparison], gates: Sequence[Gate] = ()
) -> ComparisonResult:
    """Comparisons with their gates held against them."""
    comparisons = []
    for one in found:
        figures = one.name_figures()
        judged = tuple(judge_gate(gate, figures) for gate in gates)
        comparisons.append(msgspec.structs.replace(one, gates=judged))
    failed = [gate.gate for one in comparisons for gate in one.gates if gate.outcome == "failed"]
    return ComparisonResult(base=str(base.folder), comparisons=comparisons, failed=failed)
