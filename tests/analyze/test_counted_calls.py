"""How often a function is called in a step, from what its lines did there."""

from __future__ import annotations

from detscope.analyze.advice.rules.lines.waits._reads import count_calls
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.step.beside import CodePlace

STEPS = (4, 5, 6)


def copies(
    count: float, in_call: int, shape: str, steps: tuple[int, ...] = STEPS, line: int = 3
) -> CensusPlace:
    where = CodePlace(function="match", file="matcher.py", line=line)
    return CensusPlace(
        kind="copy", what="cpu", phase="forward", where=where, own=where, count=count, in_call=in_call,
        host_ms=0.0, host_low_ms=0.0, host_high_ms=0.0, bytes=0.0, code="cost.cpu()", around="",
        detail=f"shape={shape}", rows=len(steps), steps=steps,
    )  # fmt: skip


def test_copies_of_several_sizes_in_one_call_are_one_call():
    assert count_calls([copies(2.0, 2, "2x30x4"), copies(1.0, 1, "2x60x4")]) == 1.0


def test_sizes_that_differ_from_step_to_step_are_a_call_of_each_step():
    each = [copies(4 / 3, 4, f"2x30x{step}", (step,)) for step in STEPS]
    assert count_calls(each) == 1.0


def test_a_copy_for_every_layer_is_a_call_for_every_layer():
    assert count_calls([copies(3.0, 1, "2x30x4")]) == 3.0


def test_the_line_that_runs_most_decides():
    assert count_calls([copies(2.0, 1, "1"), copies(5.0, 1, "1", line=9)]) == 5.0
