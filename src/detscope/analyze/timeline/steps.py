"""Which steps are drawn: the median one, the slowest, the first; those with operators and with memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from detscope.analyze.step.columns import highest, lowest
from detscope.analyze.step.steps import choose_typical_steps
from detscope.analyze.timeline.figures import TimelineWindow
from detscope.runs.reader import Run

_REMARKS = {
    "ops": "recorded operator by operator, which takes time of its own",
    "memory": "recorded block of memory by block, which takes time of its own",
}


@dataclass(frozen=True)
class ChosenStep:
    """A step to draw, and why it is."""

    step: int | None
    title: str
    remark: str
    window: TimelineWindow


@dataclass(frozen=True)
class StepChoice:
    """The steps to draw; how many were measured, and of these how many could be drawn."""

    steps: Sequence[ChosenStep]
    measured: int = 0
    drawn: int = 0


def choose_steps(run: Run, timeline: pl.DataFrame, events: Sequence[pl.DataFrame]) -> StepChoice:
    """Steps with spans; of a recording without steps all of it."""
    whole = run.table("steps").filter(pl.col("phase") == "step").sort("step")
    whole = whole.filter(pl.col("start_ns").is_not_null()).unique("step", keep="first", maintain_order=True)
    has_events = any(table.height for table in events)
    seen = timeline["step"].unique().implode()
    drawable = whole if has_events and not timeline.height else whole.filter(pl.col("step").is_in(seen))
    if drawable.height:
        return _choose_among(run, whole, drawable)
    if not has_events:
        return StepChoice([])
    start_ns = min(lowest(table["start_ns"]) for table in events if table.height)
    end_ns = max(highest(table["start_ns"] + table["wall_ns"]) for table in events if table.height)
    remark = "the file has no marks of steps"
    return StepChoice(
        [ChosenStep(None, "the whole recording", remark, TimelineWindow(start_ns, end_ns))], 0, 0
    )


def _choose_among(run: Run, whole: pl.DataFrame, drawable: pl.DataFrame) -> StepChoice:
    typical = choose_typical_steps(run.table("steps"), find_slow_start=run.info.get("verb") != "infer")
    measured = drawable.filter(pl.col("step").is_in(typical.measured))
    reasons: dict[int, list[str]] = {}
    if measured.height:
        middle_ns = (typical.p50_ms or 0.0) * 1e6
        by_distance = measured.sort((pl.col("wall_ns") - middle_ns).abs(), maintain_order=True)
        slowest = measured.sort("wall_ns", descending=True, maintain_order=True)["step"][0]
        among = whole.filter(pl.col("step").is_in(typical.measured)).sort("wall_ns", descending=True)
        all_drawn = among["step"][0] == slowest
        reasons.setdefault(by_distance["step"][0], []).append("the median step")
        reasons.setdefault(slowest, []).append("the slowest" if all_drawn else "the slowest that was kept")
        reasons.setdefault(measured["step"][0], []).append("the first recorded")
    for mode, title in (("ops", "with operators"), ("memory", "with memory")):
        own = drawable.filter(pl.col("mode") == mode)
        if own.height and typical.mode != mode:
            reasons.setdefault(own["step"][0 if mode == "ops" else -1], []).append(title)
    if not reasons:
        reasons[drawable["step"][0]] = ["the first recorded"]
    rows = {row["step"]: row for row in drawable.filter(pl.col("step").is_in([*reasons])).to_dicts()}
    steps = [
        ChosenStep(
            step,
            ", ".join(titles),
            _REMARKS.get(rows[step]["mode"], ""),
            TimelineWindow(rows[step]["start_ns"], rows[step]["start_ns"] + rows[step]["wall_ns"]),
        )
        for step, titles in reasons.items()
    ]
    return StepChoice(steps, len(typical.measured), measured.height)
