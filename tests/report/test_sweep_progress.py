"""A sweep on its way: time that is left counts down, and rows of no use for latency are told at once."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

from detscope.report.sweep_progress import SweepLines
from detscope.sweep.outcome import Outcome, explain_unusable_latency


@dataclass(frozen=True)
class NamedTrial:
    name: str

    def describe_trial(self) -> str:
        return self.name


@dataclass(frozen=True)
class PlacedTrial:
    trial: NamedTrial
    device_name: str = "cpu"


def measured(low: float | None, high: float | None) -> Outcome:
    return Outcome("ok", result={"step_ms": 10.0, "step_low_ms": low, "step_high_ms": high})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(count: int) -> tuple[SweepLines, Clock, io.StringIO, list[PlacedTrial]]:
    clock, stream = Clock(), io.StringIO()
    trials = [PlacedTrial(NamedTrial(f"net {number}")) for number in range(count)]
    lines = SweepLines(stream=stream, clock=clock)
    lines.begin_sweep({"cpu": trials})
    return lines, clock, stream, trials


def seconds_left(text: str) -> list[int]:
    found = re.findall(r"ETA (\d+):(\d+)", text)
    return [60 * int(minutes) + int(seconds) for minutes, seconds in found]


def test_the_time_that_is_left_never_grows_while_a_trial_is_under_way() -> None:
    lines, clock, stream, trials = lines_of(4)
    clock.now = 20.0
    lines.end_trial(trials[0], measured(9.9, 10.1), final=True)
    for second in range(25, 200, 5):
        clock.now = float(second)
        lines.redraw_lines()
    left = seconds_left(stream.getvalue())
    assert left[0] == 60
    assert left == sorted(left, reverse=True)
    assert left[-1] == 40  # of the others: the one under way takes longer than the mean


def test_a_row_of_no_use_for_latency_is_told_when_it_is_measured_and_counted_at_the_end() -> None:
    lines, _, stream, trials = lines_of(3)
    lines.end_trial(trials[0], measured(9.9, 10.1), final=True)
    assert "of no use" not in stream.getvalue()
    lines.end_trial(trials[1], measured(5.0, 15.0), final=True)
    assert "note: net 1: of no use for latency: the interval of its latency is wider" in stream.getvalue()
    lines.end_trial(trials[2], measured(None, None), final=True)
    assert "note: net 2: of no use for latency: too few steps" in stream.getvalue()
    lines.finish_sweep()
    assert "2 rows are of no use for latency" in stream.getvalue()


def test_a_trial_that_was_not_asked_for_its_latency_is_no_row_of_no_use() -> None:
    assert Outcome("ok", result={"peak_bytes": 1}).latency_why is None
    assert Outcome("timeout", result={"step_ms": 3.0}).latency_why is None
    assert explain_unusable_latency(9.0, 10.0, 11.0) is None
