"""Runs with a census, made by hand, and a rule that finds checks of tensors in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from detscope import parts
from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding
from detscope.runs.writer import RunWriter

MS = 1_000_000
CENSUS_STEPS = (3, 4, 5)


def find_checks(case: LineCase) -> Iterator[Finding]:
    """A check of a tensor reads it."""
    for rows in case.by_function(case.places("read", accept=lambda place: place.around == "check")):
        waits = sum(row.count for row in rows)
        claim = f"checks of tensors make the host wait {waits:g} times a step"
        yield case.make_finding("planted_check", rows, claim, "check on the host, or once")


@contextmanager
def rules(*added: AdviceRule) -> Iterator[None]:
    """Rules beside ours, for as long as this lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(parts._added, "advice", list(added))
        yield


CHECK_RULE = AdviceRule("planted_check", 5, lines=find_checks)


def place(
    file: str = "loss.py",
    line: int = 7,
    function: str = "check_boxes",
    *,
    kind: str = "read",
    count: int = 1,
    code: str = "assert (boxes >= 0).all()",
    around: str = "check",
    own: tuple[str, int, str] | None = None,
) -> tuple[Any, ...]:
    """A row of the census, but for its step."""
    where = (file, line, function)
    what = "aten::_local_scalar_dense" if kind == "read" else "aten::mul"
    return ("forward", kind, what, *where, *(own or where), count, count, 20_000, 0, code, around, "")


def write_counted(
    folder: Path, places: Sequence[tuple[Any, ...]], files: dict[str, str] | None = None, **info: Any
) -> Path:
    """A run of a script with eight measured steps of 20 ms and three in which these places were counted."""
    script = {"name": "train.py", "command": ["train.py"], "folder": str(folder), "exit_code": 0}
    census = {"steps": list(CENSUS_STEPS), "facts": {}, "files": files or {}}
    about = {"device": "cpu", "level": "modules", "batch_size": 2, "model": {"name": "small"}}
    writer = RunWriter(folder, "run", "small", {**about, "script": script, "census": census, **info})
    for step in range(12):
        mode = "census" if step in CENSUS_STEPS else "warmup" if step < 3 else "recorded"
        phases = {"step": 20, "forward": 12, "backward": 8}
        writer.append_rows(
            "steps", [(step, 0, mode, name, step * 30 * MS, ms * MS, None) for name, ms in phases.items()]
        )
    for step in CENSUS_STEPS:
        writer.append_rows("census", [(step, *row) for row in places])
    writer.close_run("ok")
    return writer.folder
