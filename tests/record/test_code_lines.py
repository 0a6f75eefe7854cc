"""Whose line of code it is: the script's, a package's, or that of a loop of ours."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.analyze.summary import summarize
from detscope.record.code_lines import locate_frame, tell_function


def test_in_a_training_of_ours_the_own_line_is_that_of_the_loop(tmp_path: Path) -> None:
    command = ["train", "tiny_fasterrcnn", "--steps", "2", "--data", "synthetic", "--census"]
    command += ["--set", "training.ema_decay=0.9", "--out", str(tmp_path / "runs")]
    subprocess.run([sys.executable, "-m", "detscope", *command], check=True, capture_output=True)
    summary = summarize(tmp_path / "runs" / "latest")
    assert summary.census is not None
    own = {place.own.file for place in summary.census.places}
    assert own == {"detscope/loops/train.py", "detscope/loops/ema.py"}
    average = next(part for part in summary.parts if part.name == "ema")
    assert average.own is not None
    assert average.own.file == "detscope/loops/train.py"


class AsksBack:
    """An object of somebody's that may be called and bears no other question."""

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")

    def __call__(self, items):
        return items

    def method(self, items):
        return items


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (AsksBack(), "AsksBack.__call__"),
        (functools.partial(AsksBack()), "AsksBack.__call__"),
        (functools.partial(locate_frame), "locate_frame"),
        (AsksBack().method, "AsksBack.method"),
        (len, None),
        (functools.partial(len), None),
    ],
    ids=["object", "partial of an object", "partial", "method", "builtin", "partial of a builtin"],
)
def test_a_function_is_told_by_its_code_and_a_stranger_s_object_is_not_asked(function, name):
    told = tell_function(function)
    assert told is None if name is None else told.startswith(f"{name} ")
