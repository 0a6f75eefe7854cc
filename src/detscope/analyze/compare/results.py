"""Whether a change leaves the results alone: losses of the first steps, detections, accuracy.

Runs without the change are held against each other first: what differs from itself cannot tell anything about
a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import polars as pl

from detscope.analyze.curve import RATE
from detscope.analyze.figure import Figure
from detscope.runs.reader import Run

FIRST_STEPS = 5  # later ones tell of rounding that has grown as well
TOLERANCE = 1e-4  # a share: sums in another order differ by a hundredth of it
SMALL_PART = 0.01  # of the whole loss: what is smaller is held against this much of it
WHOLE_LOSS = "loss"
Key = tuple[str, int | None]  # what, and in which step
Results = Mapping[Key, float]


class ResultDifference(Figure, frozen=True, kw_only=True):
    """The result that differs most."""

    what: str  # name of the loss, the detections or the measure of accuracy
    step: int | None  # in which step, from 0; None of what belongs to the run
    before: float  # in the first run without the change
    after: float | None  # in the other run; None where that has none
    share: float | None  # difference over the larger of both; None where it is not finite

    @property
    def words(self) -> str:
        """`loss of step 2: 1.25 and 1.5`."""
        where = "" if self.step is None else f" of step {self.step}"
        other = "nothing" if self.after is None else f"{self.after:.7g}"
        return f"{self.what}{where}: {self.before:.7g} and {other}"


class ResultCheck(Figure, frozen=True, kw_only=True):
    """Whether results with a change equal those without it."""

    verdict: Literal["equal", "different", "cannot tell", "not checked"]  # in a word
    compared: tuple[str, ...] = ()  # what was held against each other
    tolerance: float | None = None  # the largest share that counts as equal; None: not checked
    base_difference: ResultDifference | None = None  # the largest between runs without the change
    difference: ResultDifference | None = None  # the largest between runs with and without it
    why: str | None = None  # why it cannot be told


def read_results(run: Run) -> dict[Key, float]:
    """What a run computed, as far as it was recorded."""
    losses = run.table("losses").filter(pl.col("name") != RATE)  # set, not computed
    first = losses["step"].unique().sort().head(FIRST_STEPS).to_list()
    found: dict[Key, float] = {
        (name, step): value
        for step, name, value in losses.filter(pl.col("step").is_in(first)).sort("step").iter_rows()
    }
    images = run.table("images", ("step", "position", "name", "detections", "above_score")).sort("step")
    for step, position, name, count, above in images.iter_rows():
        for what, value in (("detections", count), ("detections above the score", above)):
            if value is not None:  # by name, if there is one: other sizes of batches make other steps
                key = (f"{what} in {name}", None) if name else (f"{what} in image {position}", step)
                found[key] = float(value)
    if images.is_empty():
        counted = run.table("content", ("step", "detections")).drop_nulls().sort("step").head(FIRST_STEPS)
        found |= {("detections", step): float(count) for step, count in counted.iter_rows()}
    accuracy = run.table("accuracy").filter(pl.col("value").is_not_null() & pl.col("category").is_null())
    for row in accuracy.iter_rows(named=True):
        found[f"{row['kind']} {row['figure']}", row["step"]] = row["value"]
    return found


def check_results(
    without: Sequence[Results], changed: Sequence[Results], tolerance: float = TOLERANCE
) -> ResultCheck:
    """Runs without the change against each other, then those with it against the first of them."""
    if math.isinf(tolerance):
        return ResultCheck(verdict="not checked", why="--tolerance inf")
    base = without[0]
    compared = tuple(_tell_compared(base))
    if not base:
        why = "the runs hold neither losses, detections nor accuracy"
        return ResultCheck(verdict="cannot tell", tolerance=tolerance, why=why)
    own, other = (_find_largest(base, runs) for runs in (without[1:], changed))
    verdict: Literal["equal", "different", "cannot tell"] = "equal"
    reason: str | None = None
    if own is not None and _is_beyond(own, tolerance):
        verdict = "cannot tell"
        reason = f"the base differs from itself by {_share_text(own)} ({own.words})"
    elif other is not None and _is_beyond(other, tolerance):
        verdict = "different"
    return ResultCheck(
        verdict=verdict,
        compared=compared,
        tolerance=tolerance,
        base_difference=own,
        difference=other,
        why=reason,
    )


def _share_text(difference: ResultDifference) -> str:
    return "a value that is no number" if difference.share is None else f"{difference.share:.2g}"


def _is_beyond(difference: ResultDifference, tolerance: float) -> bool:
    return difference.share is None or difference.share > tolerance


def _find_largest(base: Results, runs: Sequence[Results]) -> ResultDifference | None:
    """The largest difference from the first run, the earliest of equal ones; None of no runs."""
    rows = [row for one in runs for row in _list_differences(base, one)]
    return max(rows, key=lambda row: math.inf if row.share is None else row.share, default=None)


def _list_differences(base: Results, other: Results) -> Iterator[ResultDifference]:
    for (what, step), before in base.items():
        after = other.get((what, step))
        yield ResultDifference(
            what=what,
            step=step,
            before=before,
            after=after,
            share=None if after is None else _differ(before, after, base.get((WHOLE_LOSS, step))),
        )


def _differ(before: float, after: float, whole: float | None) -> float | None:
    """Of the larger one, and at least of a hundredth of the whole loss; None where one is no number."""
    if before == after or (math.isnan(before) and math.isnan(after)):
        return 0.0
    if not math.isfinite(before) or not math.isfinite(after):
        return None
    floor = SMALL_PART * abs(whole) if whole is not None and math.isfinite(whole) else 0.0
    return abs(before - after) / max(abs(before), abs(after), floor)


def _tell_compared(base: Results) -> Iterator[str]:
    detections = sum(what.startswith("detections") for what, _ in base)
    measures = sum(what.startswith(("coco_", "voc")) for what, _ in base)
    losses = [key for key in base if not key[0].startswith(("detections", "coco_", "voc"))]
    if losses:
        steps = len({step for _, step in losses})
        yield f"{', '.join(dict.fromkeys(what for what, _ in losses))} of the first {steps} steps"
    if detections:
        yield f"{detections} counts of detections"
    if measures:
        yield f"{measures} measures of accuracy"
