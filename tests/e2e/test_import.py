"""`detscope import` as a person uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

from kineto_maker import event, training_step

from detscope.report.trace import write_trace
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter
from schema_check import check_summary


def detscope(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "detscope", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)


def times(rows: list[dict[str, Any]], key: str) -> dict[str, float]:
    return {row["name"]: row[key] for row in rows}


def write(path: Path, shift: float = 0.0, **around: Any) -> Path:
    steps = [one for number in range(1, 6) for one in training_step(1000.0 * number + shift, number)]
    path.write_text(json.dumps({**around, "traceEvents": steps}))
    return path


def test_a_trace_becomes_a_run_that_shows_its_phases_modules_and_device_use(tmp_path):
    trace = write(tmp_path / "net.json", deviceProperties=[{"id": 0, "name": "Test GPU", "numSms": 80}])
    result = detscope("import", trace, "--out", "there", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["verb"] == "import"
    check_summary(summary)
    assert summary["step_ms"]["p50"] == pytest.approx(1.0)
    assert times(summary["phases"], "ms")["data"] == pytest.approx(0.1)
    assert {row["path"] for row in summary["modules"]} >= {"Conv2d_0", "Linear_0"}
    assert summary["device"] == "Test GPU"
    assert summary["device_use"]["steps"] == 5
    shown = detscope("show", summary["run"], "--section", "modules", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "Conv2d_0" in shown.stdout
    assert Path(tmp_path, "there", "latest").exists()


def test_two_ranks_of_a_job_are_one_run_and_strangers_are_two(tmp_path):
    job = {"backend": "nccl", "world_size": 2}
    first = write(tmp_path / "r0.json", distributedInfo={**job, "rank": 0})
    second = write(tmp_path / "r1.json", shift=1e9, distributedInfo={**job, "rank": 1})
    result = detscope("import", first, second, "--name", "job", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    device = load_run(tmp_path / summary["run"]).table("device_events")
    starts = dict(device.group_by("rank").agg(pl.col("start_ns").min()).iter_rows())
    assert starts[0] == starts[1]  # their clocks did not overlap: their first common steps begin together
    assert any("moved by" in note for note in summary["notes"])
    assert summary["step_ms"]["n"] == 5
    strangers = detscope(
        "import", write(tmp_path / "a.json"), write(tmp_path / "b.json"), "--json", cwd=tmp_path
    )
    assert strangers.returncode == 0, strangers.stderr
    assert len(json.loads(strangers.stdout)) == 2


def test_what_cannot_be_used_ends_with_3_and_one_line_of_cause(tmp_path):
    (tmp_path / "page.json").write_text("<html>404</html>")
    (tmp_path / "nothing.json").write_text('{"traceEvents": []}')
    for name in ("page.json", "nothing.json", "missing.json"):
        result = detscope("import", name, cwd=tmp_path)
        assert result.returncode == 3
        assert "Traceback" not in result.stderr
        assert name in result.stderr.splitlines()[0]
        assert len(result.stderr.strip().splitlines()) == 2
    assert not (tmp_path / "runs").exists()


def test_a_cut_trace_is_partial_and_says_what_was_dropped(tmp_path):
    whole = write(tmp_path / "whole.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) * 6 // 10])
    result = detscope("import", "cut.json", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["status"] == "partial"
    assert "cut.json is cut" in summary["reason"]


def test_nothing_private_reaches_the_run(tmp_path):
    events = [*training_step(), event("user_annotation", "read /home/somebody/data", 5, 1)]
    trace = tmp_path / "private.json"
    private = {
        "env": {"HF_TOKEN": "hf_verysecret"},
        "traceName": "/home/somebody/x.json",
        "traceEvents": events,
    }
    trace.write_text(json.dumps(private))
    result = detscope("import", trace, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert any("HF_TOKEN" in note for note in summary["notes"])
    run = load_run(tmp_path / summary["run"])
    text = json.dumps(run.info) + "".join(
        run.table(file.stem).write_json() for file in run.folder.glob("*.parquet")
    )
    assert "hf_verysecret" not in text + result.stdout
    assert "somebody" not in text


def test_our_own_trace_can_be_imported_again(tmp_path):
    writer = RunWriter(tmp_path / "runs", "train", "tiny", {"verb": "train"})
    rows = []
    for step in range(3):
        at = step * 1_000_000
        rows += [
            (step, "steps", f"step {step}", "", at, 900_000),
            (step, "phases", "data", "", at, 100_000),
            (step, "phases", "forward", "", at + 100_000, 400_000),
            (step, "phases", "backward", "", at + 500_000, 400_000),
            (step, "modules", "Tiny", "forward", at + 100_000, 400_000),
            (step, "modules", "backbone", "forward", at + 150_000, 200_000),
            (step, "modules", "backbone", "backward", at + 600_000, 100_000),
            (step, "stages", "backbone", "forward", at + 150_000, 200_000),
        ]
    writer.append_rows("timeline", rows)
    writer.close_run("ok")
    trace = write_trace(load_run(writer.folder))
    result = detscope("import", trace, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["step_ms"]["n"] == 3
    assert times(summary["phases"], "ms")["forward"] == pytest.approx(0.4)
    assert times(summary["stages"], "total_ms")["backbone"] == pytest.approx(0.2)
    backbone = next(
        row for row in summary["modules"] if row["path"] == "backbone" and row["kind"] == "module"
    )
    assert backbone["forward_ms"] == pytest.approx(0.2)
