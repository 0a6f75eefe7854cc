"""Spans that are open while a session of the profiler ends: torch writes their ends into freed memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from detscope.record.operators.profiler import OpenSpans, inside_compiled_code


def session() -> Any:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def names(ended: Any) -> list[str]:
    return [event.name() for event in ended.profiler.kineto_results.events()]


def test_a_span_that_is_open_over_a_border_is_in_both_sessions_and_ends_in_the_second():
    spans = OpenSpans()
    spans.watch_spans()
    first, second = session(), session()
    first.start()
    with record_function("outer"), record_function("inner") as inner:
        before = inner.record
        torch.ones(2)
        with spans.close_for_a_moment():
            first.stop()
        with spans.close_for_a_moment():
            second.start()
        assert inner.record is not before
        torch.ones(2)
    second.stop()
    spans.stop_watching()
    for ended in (first, second):
        assert [name for name in names(ended) if name in ("outer", "inner")] == ["outer", "inner"]


def test_a_span_that_was_closed_is_left_alone_and_ours_end_first():
    ended: list[str] = []
    spans = OpenSpans(lambda: ended.append("ours"))
    spans.watch_spans()
    with record_function("done") as done:
        pass
    record = done.record
    with spans.close_for_a_moment():
        ended.append("session")
    spans.stop_watching()
    assert ended == ["ours", "session"]
    assert done.record is record


def test_afterwards_spans_are_torchs_own_again():
    plain = dict(vars(record_function))
    spans = OpenSpans()
    spans.watch_spans()
    spans.watch_spans()
    spans.stop_watching()
    assert dict(vars(record_function)) == plain


def labelled(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("label"):
        return x + 1


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_function_with_a_span_is_scripted_and_compiled_as_without_us():
    spans = OpenSpans()
    spans.watch_spans()
    try:
        assert torch.jit.script(labelled)(torch.ones(1)).item() == 2
        assert torch.compile(labelled, backend="eager")(torch.ones(1)).item() == 2
    finally:
        spans.stop_watching()


@pytest.mark.filterwarnings("ignore:.*list.append:UserWarning")  # which compilers up to 2.8 leave to Python
def test_compiled_functions_that_stay_open_are_seen():
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        seen.append(inside())
        return y * 2

    inside = torch._dynamo.disable(inside_compiled_code)
    torch.compile(look, backend="eager")(torch.ones(1))
    look(torch.ones(1))
    assert seen == [True, False]
