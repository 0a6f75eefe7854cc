"""Recordings of little or of odd texts: a run that opens, or a line that names the file."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from detscope.cli.main import app

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "k",
    "ts": 1,
    "dur": 5,
    "pid": 0,
    "tid": 7,
    "args": {"stream": 7},
}


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        app([*words], prog_name="detscope")
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", ["k", "half \ud800", "\x1b[2J"])
def test_a_trace_of_one_kernel_is_a_run_that_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    trace = tmp_path / "one.json"
    trace.write_text(json.dumps({"traceEvents": [{**KERNEL, "name": name}]}))
    assert ended("import", str(trace), "--out", str(tmp_path / "runs")) == 0, capsys.readouterr().err
    assert "\x1b" not in capsys.readouterr().out


def test_a_pipe_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "mine.json")
    assert ended("import", str(tmp_path / "mine.json"), "--out", str(tmp_path / "runs")) == 3
    assert "mine.json is a pipe" in capsys.readouterr().err


@pytest.mark.parametrize("content", [pickle.dumps(print), pickle.dumps({"segments": [1] * 500})[:200]])
def test_a_snapshot_that_is_refused_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "mine.pickle").write_bytes(content)
    assert ended("import", str(tmp_path / "mine.pickle"), "--out", str(tmp_path / "runs")) == 3
    assert "mine.pickle" in capsys.readouterr().err
