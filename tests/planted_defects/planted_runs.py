"""A planted script and its mended twin, under `detscope run --census`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from detscope.analyze.findings.finding import Finding
from detscope.analyze.summary import RunSummary, summarize
from detscope.runs.reader import load_run

HERE = Path(__file__).parent


def record_script(script: Path, out: Path) -> RunSummary:
    """The figures of the script, which must end well and be counted."""
    command = [sys.executable, "-m", "detscope", "run", "-q", "--census", "--out", str(out), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = summarize(load_run(out / "latest"))
    assert summary.census is not None
    return summary


def check_planted(script: str, rule: str, text: str, folder: Path) -> Finding:
    """One finding of the rule, at the line of this text; none in the mended script."""
    lines = [line.strip() for line in (HERE / script).read_text().splitlines()]
    (found,) = [one for one in record_script(HERE / script, folder / "planted").findings if one.rule == rule]
    assert (found.where[0].file, found.where[0].line) == (script, lines.index(text) + 1), found
    assert found.id.startswith(f"{rule}-")
    assert found.verify.startswith("detscope try")
    assert found.change
    mended = record_script(HERE / script.replace(".py", "_mended.py"), folder / "mended")
    assert not [one for one in mended.findings if one.rule == rule and one.where]
    return found
