"""Planted scripts, run as a person runs them: the line is named, and not in the mended script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from table_b import PLANTED

from detscope.analyze.summary import RunSummary, summarize

HERE = Path(__file__).parent


def record(script: Path, out: Path) -> RunSummary:
    command = [sys.executable, "-m", "detscope", "run", "--census", "--out", str(out), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (one for one in out.iterdir() if one.is_dir() and not one.is_symlink())
    return summarize(run)


@pytest.mark.parametrize(("script", "rule", "text"), PLANTED, ids=[rule for _, rule, _ in PLANTED])
def test_the_planted_line_is_named_and_the_mended_script_is_left_alone(script, rule, text, tmp_path):
    summary = record(HERE / script, tmp_path / "planted")
    found = [finding for finding in summary.findings if finding.rule == rule]
    lines = [line.strip() for line in (HERE / script).read_text().splitlines()]
    assert [finding.where[0].line for finding in found] == [lines.index(text) + 1]
    assert found[0].where[0].file == script
    assert found[0].id.startswith(f"{rule}-")
    assert found[0].verify.startswith("detscope try")
    mended = record(HERE / script.replace(".py", "_mended.py"), tmp_path / "mended")
    assert mended.census is not None
    assert not [finding for finding in mended.findings if finding.rule == rule and finding.where]
