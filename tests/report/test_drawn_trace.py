"""The Chrome trace: of a long run the drawn steps, and what ran beside them."""

from __future__ import annotations

import json
from pathlib import Path

from detscope.report.trace import trace_lines
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter

MS = 1_000_000


def test_batches_between_steps_that_lie_far_apart_are_not_in_the_trace(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "train", "small", {"device": "cpu", "level": "modules"})
    for step in (0, 1, 900):
        writer.append_rows("timeline", [(step, "steps", f"step {step}", "", step * 10 * MS, 10 * MS)])
    batches = [(step, 0, 7, "batch", step * 10 * MS + MS, MS, 2, 0, None, None) for step in range(1000)]
    writer.append_rows("loader", batches)
    writer.append_rows("telemetry", [(step * 10 * MS, "cpu", "load", 1.0, "%") for step in range(1000)])
    writer.close_run("ok", None)
    events = [json.loads(line) for line in trace_lines(load_run(writer.folder))]
    assert [event["name"] for event in events if event.get("cat") == "loader"] == [
        "batch of step 0",
        "batch of step 1",
        "batch of step 900",
    ]
    assert [event["ts"] for event in events if event["ph"] == "C"] == [
        0,
        10_000,
        20_000,
        9_000_000,
        9_010_000,
    ]
