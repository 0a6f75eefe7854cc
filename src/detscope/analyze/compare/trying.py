"""A change tried: pairs of processes without and with it, and the verdict that their interval allows.

The protocol, with its reasons, is docs/try.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import polars as pl

from detscope.analyze.compare.change import RISK, Ends, RatioSpread, Sample, compare_samples
from detscope.analyze.compare.looks import RiskSpender, spend_evenly
from detscope.analyze.compare.results import ResultCheck
from detscope.analyze.figure import Figure
from detscope.analyze.step.steps import choose_typical_steps
from detscope.errors import InputError
from detscope.runs.reader import Run

TRY_SCHEMA = 1
LEAST_ROUNDS = 2  # so that the base can be held against itself
# Processes come in kinds (where memory lies, which cores they get): of two equally frequent kinds, six pairs
# would all lie the same way and equally far once in 4,096 tries.
LEAST_PAIRS = 6
LEAST_GAIN = 0.01  # below it nobody should change code for speed
DECISION_RISK = 0.002  # of both sides and all looks: of a thousand changes that do nothing, one is accepted
Outcome = Literal["accept", "reject", "undecided"]


class RunCost(NamedTuple):
    """What a process took: the mean of its measured steps."""

    step_ms: float
    image_ms: float | None  # None where images were not counted
    steps: int


class TriedTime(Figure, frozen=True, kw_only=True):
    """The time without and with a change; a gain is positive where it is faster."""

    per: Literal["image", "step"]  # what the times are of
    before: float  # ms without the change: mean of a process, geometric mean of processes
    after: float  # ms with it
    gain: float  # share of the time that it saves
    gain_ci95: Ends | None = None  # its 95 % interval, corrected for repeated looks; None of one pair
    pairs: int  # of processes, one after the other
    steps: tuple[int, int]  # measured, of both sides together


class Attempt(Figure, frozen=True, kw_only=True):
    """A change against the base: the verdict and its figures."""

    verdict: Outcome  # accept, reject or undecided
    why: str  # in a sentence
    time: TriedTime | None = None  # None where it could not run
    results: ResultCheck | None = None  # None where it could not run
    runs_before: tuple[str, ...] = ()  # folders of the runs without the change
    runs_after: tuple[str, ...] = ()  # folders of those with it


class TriedFinding(Figure, frozen=True, kw_only=True):
    """The finding that a change is about."""

    id: str  # as `detscope why` names it
    claim: str  # what is wrong
    where: tuple[str, ...] = ()  # file:line function


class TryResult(Attempt, frozen=True, kw_only=True):
    """A change of a run, tried."""

    run: str  # folder of the run whose command was tried
    command: str  # that was started again and again
    change: tuple[str, ...]  # what was changed, in words
    files: tuple[str, ...] = ()  # that the patch touches
    patch: str | None = None  # the unified diff
    finding: TriedFinding | None = None  # what it is about; None where that is not known
    folder: str  # of the try: runs of both sides, their output, try.json, try.md
    copies: str | None = None  # of what both sides had copies; None: of nothing
    rounds: int  # pairs at most
    budget_s: float  # seconds at most
    spent_s: float  # seconds
    seed: int | None = None  # that both sides began with
    others_share: float | None = None  # of all cores, used by others in the last pair; None: not sampled
    not_checked: tuple[str, ...] = ()  # what nobody looked at


def read_cost(run: Run) -> RunCost:
    """The mean of a run's measured steps, slow ones included, warm-up not."""
    steps = run.table("steps")
    typical = choose_typical_steps(steps, find_slow_start=run.info.get("verb") != "infer")
    timed = set(typical.timed)
    whole = dict(steps.filter(pl.col("phase") == "step").select("step", "wall_ns").iter_rows())
    times = {step: whole[step] / 1e6 for step in timed if step in whole}
    if not times:
        raise InputError(f"{run.folder} has no measured step", "let the command do more steps")
    images = dict(run.table("content", ("step", "images")).drop_nulls().iter_rows())
    counted = sum(images.get(step, 0) for step in times) if all(images.get(step) for step in times) else 0
    spent = sum(times.values())
    return RunCost(spent / len(times), spent / counted if counted else None, len(times))


class PairJudge:
    """Looks at pairs as they come; all its looks together take the risk of one."""

    def __init__(self, most_rounds: int) -> None:
        self._printed = RiskSpender(most_rounds, spend=spend_evenly)
        self._deciding = RiskSpender(most_rounds, DECISION_RISK, spend_evenly)

    def look_at(
        self, before: Sequence[RunCost], after: Sequence[RunCost], is_last: bool
    ) -> tuple[Attempt, bool]:
        """What can be said after these pairs, and whether it is decided."""
        pairs = min(len(before), len(after))
        before, after = before[:pairs], after[:pairs]
        if pairs < LEAST_PAIRS:
            time, _ = self._compare(before, after, RISK)
            why = f"{pairs} pairs of runs; {LEAST_PAIRS} are the least for a verdict"
            return Attempt(verdict="undecided", why=why, time=time), False
        risk = self._printed.take_look(pairs, is_last)
        time, _ = self._compare(before, after, risk)
        _, sure = self._compare(before, after, self._deciding.take_look(pairs, is_last))
        ends = time.gain_ci95
        verdict, why = _judge(time, sure)
        decided = verdict != "undecided"
        if not decided and ends and max(map(abs, ends)) <= LEAST_GAIN:
            verdict, decided = "reject", True
            why = f"no gain: within {LEAST_GAIN:.0%} of no change"
        return Attempt(verdict=verdict, why=why, time=time), decided

    @staticmethod
    def _compare(
        before: Sequence[RunCost], after: Sequence[RunCost], risk: float
    ) -> tuple[TriedTime, Ends | None]:
        per_image = all(one.image_ms is not None for one in (*before, *after))
        samples = [
            [Sample(one.image_ms if per_image and one.image_ms is not None else one.step_ms) for one in side]
            for side in (before, after)
        ]
        change = compare_samples(samples[0], samples[1], RatioSpread(0.0, 1.0), risk=risk)
        assert change.before is not None and change.after is not None and change.relative is not None
        ends = change.relative_ci95
        gain: Ends | None = (-ends[1], -ends[0]) if ends else None
        time = TriedTime(
            per="image" if per_image else "step",
            before=change.before,
            after=change.after,
            gain=-change.relative,
            gain_ci95=gain,
            pairs=len(before),
            steps=(sum(one.steps for one in before), sum(one.steps for one in after)),
        )
        return time, gain


def _judge(time: TriedTime, sure: Ends | None) -> tuple[Outcome, str]:
    """By the interval at the level of a decision."""
    if sure is not None and sure[0] >= LEAST_GAIN:
        return "accept", f"faster: {time.gain:.1%} less time per {time.per}"
    if sure is not None and sure[1] < 0:
        return "reject", f"slower: {-time.gain:.1%} more time per {time.per}"
    if time.gain_ci95 is not None and time.gain_ci95[0] > 0:
        return "undecided", "it looks faster, but not beyond doubt or by 1 %"
    return "undecided", "the interval includes no change"


def weigh_results(attempt: Attempt, results: ResultCheck) -> Attempt:
    """The verdict with the results in it: different ones reject, unknown ones accept nothing."""
    verdict, why = attempt.verdict, attempt.why
    if results.verdict == "different" and results.difference is not None:
        verdict, why = "reject", f"the results differ: {results.difference.words}"
    elif results.verdict == "cannot tell" and verdict != "reject":
        seen = f"{why}, but " if verdict == "accept" else ""
        verdict, why = "undecided", f"{seen}results cannot be compared: {results.why}"
    elif verdict == "accept":
        why += ", equal results" if results.verdict == "equal" else ", results not checked"
    return msgspec.structs.replace(attempt, verdict=verdict, why=why, results=results)
