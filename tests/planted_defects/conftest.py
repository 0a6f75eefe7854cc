"""Planted scripts are recorded once for all tests of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_process import TorchServer

from detscope.analyze.summary import RunSummary, summarize
from detscope.runs.reader import load_run
from planted_defects.planted_runs import HERE, Record


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, torch_server: TorchServer) -> Record:
    """The figures of a script under `detscope run --census`; by its name it is one of this folder."""
    known: dict[str, RunSummary] = {}

    def record_once(script: str | Path) -> RunSummary:
        path = str(HERE / script)
        if path not in known:
            out = tmp_path_factory.mktemp("runs")
            words = ("run", "-q", "--census", "--seed", "0", "--out", str(out), path)
            done = torch_server(*words, folder=Path(path).parent)
            assert done.returncode == 0, done.stderr
            known[path] = summarize(load_run(out / "latest"))
        return known[path]

    return record_once
