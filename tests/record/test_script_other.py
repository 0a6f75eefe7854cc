"""Time of a script outside of all phases: whose functions spent it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from script_listening import Net, batches

from detscope.record.script.closing import other_notes
from detscope.record.script.other import OtherSampler, Place


def test_time_outside_of_phases_is_traced_to_the_function_that_spent_it(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # how often a timer gets to look is the machine's business: here the function has itself looked at
    monkeypatch.setattr(OtherSampler, "start", lambda _sampler: None)

    def keep_books() -> None:
        time.sleep(0.03)
        for _ in range(3):
            looking = threading.Thread(target=heard.tracker.recording._sampler.look)
            looking.start()
            looking.join()

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        for batch in batches(12):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            keep_books()
    recorded = heard.table("steps").filter(pl.col("mode") == "recorded")
    other_ns = recorded.filter(pl.col("phase") == "other")["wall_ns"]
    assert other_ns.len() >= 5
    assert other_ns.min() >= 30_000_000  # type: ignore[operator]
    (only,) = heard.script["other"]
    assert only["function"].endswith("keep_books")
    assert only["file"] == Path(__file__).name
    assert only["share_of_other"] == 1.0
    assert only["looks"] == 3 * other_ns.len()
    assert only["ms"] == pytest.approx(other_ns.median() / 1e6)  # type: ignore[operator]
    share = (other_ns / recorded.filter(pl.col("phase") == "step")["wall_ns"]).median()
    assert set(other_notes([only], share, only["looks"])) <= set(heard.info["notes"])


def test_a_large_part_outside_of_phases_is_said_with_the_functions_that_spent_it() -> None:
    row = {"function": "keep_books", "file": "train.py", "line": 7, "share_of_other": 0.9}
    (said,) = other_notes([row], 0.4, 50)
    assert "other is 40% of the step: 90% in keep_books (train.py:7)" in said
    assert "cannot tell whose" in other_notes([row], 0.4, 3)[0]
    assert other_notes([row], 0.01, 50) == []


def test_functions_are_told_by_their_share_of_the_looks_with_the_line_that_was_seen_most() -> None:
    sampler = OtherSampler(lambda: None)
    sampler.places.update(
        {Place("log", "a.py", 3): 1, Place("log", "a.py", 4): 5, Place("save", "b.py", 9): 2}
    )
    first, second = sampler.rows(80.0)
    assert (first["function"], first["line"], first["looks"], first["ms"]) == ("log", 4, 6, 60.0)
    assert (second["function"], second["share_of_other"], second["ms"]) == ("save", 0.25, 20.0)
    assert sampler.rows(None)[0]["ms"] is None


def test_a_timer_looks_at_the_running_function_until_it_is_stopped() -> None:
    def work() -> None:
        limit_s = time.monotonic() + 900
        while time.monotonic() < limit_s:
            if any(place.function.endswith("work") for place in list(sampler._pending)):
                break
            time.sleep(0.01)

    running = threading.get_ident()
    sampler = OtherSampler(lambda: running)
    sampler.start()
    work()
    running = None  # type: ignore[assignment]
    sampler.stop()
    seen = len(sampler._pending)
    sampler.look()
    assert len(sampler._pending) == seen, "nothing to look at"
    sampler.take_step(counts=True)
    rows = sampler.rows(10.0)
    assert sum(row["looks"] for row in rows) == seen > 0
    assert sum(row["ms"] for row in rows) == pytest.approx(10.0)
    assert {row["file"] for row in rows} == {Path(__file__).name}
    assert "work" in {row["function"].rpartition(".")[2] for row in rows}
