"""The section of the report about a script that was recorded as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from detscope.analyze.script import script_figures
from detscope.report.model import Table
from detscope.report.sections.script import section

SCRIPT: dict[str, Any] = {
    "name": "train.py",
    "optimizers": ["SGD"],
    "parts": {
        "training": {"steps": 1200, "batches": 2400, "step_p50_ms": 20.0, "total_s": 24.0},
        "evaluation": {"steps": 0, "batches": 0, "step_p50_ms": None, "total_s": 0.0},
    },
    "roots": [
        {
            "class": "<img src=x>",
            "inside": ["DataParallel"],
            "role": "model",
            "parameters": 7,
            "calls": 2400,
            "calls_in_training_mode": 2400,
            "forward_ms": 9000.0,
        }
    ],
    "other": [
        {
            "function": "log",
            "file": "train.py",
            "line": 7,
            "looks": 9,
            "share_of_other": 1.0,
            "ms": 2.0,
            "steps": 3,
            "inside": [{"function": "flush", "file": "framework/log.py", "line": 5}],
        }
    ],
}


def told(script: dict[str, Any] | None) -> Any:
    return SimpleNamespace(summary=SimpleNamespace(script=script_figures(script)))


def test_parts_models_and_functions_are_told_and_parts_that_never_ran_are_not() -> None:
    found: Any = section(told(SCRIPT))  # type: ignore[arg-type]
    assert found.title == "train.py: 1,200 training steps, by SGD"
    tables = {block.id: block for block in found.blocks if isinstance(block, Table)}
    assert [row[0] for row in tables["script-parts"].rows] == ["training"]
    assert tables["script-models"].rows[0][0] == "DataParallel of <img src=x>"  # the page escapes it
    assert tables["script-other"].rows[0] == [
        "log",
        "train.py:7",
        "flush (framework/log.py:5)",
        3,
        9,
        1.0,
        2.0,
    ]


def test_other_runs_have_no_such_section() -> None:
    assert section(told(None)) is None  # type: ignore[arg-type]
