"""Every recording has its views, and none is lost for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import detscope
from detscope.sessions.own_loop import PublishingRecorder


def record(folder: Path, batches: int = 6) -> detscope.Recorder:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with detscope.Recorder(model, optimizer, folder, stages=(), observers=(), telemetry_hz=0) as recorder:
        for x in recorder.steps([torch.rand(2, 4) for _ in range(batches)]):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    return recorder


def test_a_loop_of_ones_own_leaves_a_page_and_a_trace(tmp_path):
    assert detscope.Recorder is PublishingRecorder
    run = record(tmp_path).run
    assert {"report.html", "trace.json.gz", "run.json"} <= {path.name for path in run.iterdir()}


def test_views_that_cannot_be_made_cost_nothing_of_the_recording(tmp_path, monkeypatch, capsys):
    def failing(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("detscope.report.publish.publish_run", failing)
    run = record(tmp_path).run
    assert detscope.load_run(run).status == "ok"
    said = capsys.readouterr().err
    assert str(run) in said
    assert "the disk is gone" in said


def test_a_watched_script_is_told_that_its_report_is_missing_and_not_its_recording(
    tmp_path, monkeypatch, capsys
):
    def failing(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("detscope.report.publish.publish_run", failing)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with detscope.watch(out=tmp_path) as watched:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.rand(2, 4)).sum().backward()
            optimizer.step()
    assert watched.run is not None
    assert detscope.load_run(watched.run).status == "ok"
    assert (
        f"the report of {watched.run} could not be written: OSError: the disk is gone"
        in capsys.readouterr().err
    )


def test_an_interrupted_loop_does_not_wait_for_its_views(tmp_path):
    model = nn.Linear(4, 1)
    recorder = detscope.Recorder(model, None, tmp_path, stages=(), observers=(), telemetry_hz=0)
    with pytest.raises(KeyboardInterrupt), recorder:
        for number, x in enumerate(recorder.steps([torch.rand(2, 4) for _ in range(6)])):
            model(x)
            if number == 4:
                raise KeyboardInterrupt
    assert detscope.load_run(recorder.run).status == "partial"
    assert not (recorder.run / "report.html").exists()


def test_a_process_that_only_records_imports_nothing_of_the_page():
    code = "import sys, detscope.sessions.own_loop, detscope.sessions.run.watch\n"
    code += "print(sorted({'jinja2', 'markupsafe', 'matplotlib', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
