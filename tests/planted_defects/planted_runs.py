"""A planted script and its mended twin, under `detscope run --census` and on the simulated device."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from detscope.analyze.compare.results import check_results, read_results
from detscope.analyze.findings.finding import Finding
from detscope.analyze.summary import RunSummary, summarize
from detscope.runs.reader import load_run
from detscope.sessions.trying.patches import apply_patch, read_patch
from planted_defects.simulated_waits import count_simulated_waits

HERE = Path(__file__).parent
_WAITS = ("read", "size", "copy", "index", "feed")
Record = Callable[[str | Path], RunSummary]  # of a script


def record_script(script: Path, out: Path) -> RunSummary:
    """The figures of the script, which must end well and be counted."""
    command = [sys.executable, "-m", "detscope", "run", "-q", "--census", "--out", str(out), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = summarize(load_run(out / "latest"))
    assert summary.census is not None
    return summary


def name_mended(script: str) -> str:
    """The twin of a planted script."""
    return script.replace(".py", "_mended.py")


def check_planted(script: str, rule: str, text: str, record: Record) -> Finding:
    """One finding of the rule, at the line of this text; none in the mended script."""
    lines = [line.strip() for line in (HERE / script).read_text().splitlines()]
    (found,) = [one for one in record(script).findings if one.rule == rule]
    assert (found.where[0].file, found.where[0].line) == (script, lines.index(text) + 1), found
    assert found.id.startswith(f"{rule}-")
    assert found.verify.startswith("detscope try")
    assert found.change
    mended = record(name_mended(script))
    assert not [one for one in mended.findings if one.rule == rule and one.where]
    return found


def check_diff(script: str, rule: str, record: Record, folder: Path) -> None:
    """The finding's own diff in a copy: nothing is left of it, and the losses are the same."""
    (found,) = [one for one in record(script).findings if one.rule == rule]
    assert found.diff is not None and found.verify.endswith(f"--finding {found.id}")
    (file,) = read_patch(found.diff, "its own")
    assert Path(file.name).name == script
    shutil.copy(HERE / "drawn_boxes.py", folder)
    (folder / script).write_text(apply_patch((HERE / script).read_text(), file, "its own"))
    changed = record(folder / script)
    assert not [one for one in changed.findings if one.rule == rule and one.where]
    results = [read_results(load_run(Path(one.run))) for one in (record(script), changed)]
    assert check_results(results[:1], results[1:]).verdict == "equal"


def check_waits(script: str, record: Record) -> None:
    """What the census counts without a device is what the host waits for on one, line by line."""
    census = record(script).census
    assert census is not None
    counted: Counter[tuple[str, int]] = Counter()
    for row in census.places:
        if row.kind in _WAITS and row.facts.get("non_blocking") != "True":
            counted[Path(row.where.file).name, row.where.line] += row.count
    means = {place: round(count, 6) for place, count in counted.items()}  # of steps, a third of three each
    assert means == count_simulated_waits(HERE / script)
