"""The command of each side: the run's own, at the level of phases, with its code in the copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counted_runs import place, write_counted
from detscope.analyze.step.beside import CodePlace
from detscope.analyze.summary import summarize
from detscope.runs.reader import Run, load_run
from detscope.runs.writer import RunWriter
from detscope.sessions.trying.commands import find_command
from detscope.sessions.trying.copies import Patch, Workplace, patched_copies
from detscope.sessions.trying.session import TryRequest, find_change, match_place


def make_run(folder: Path, verb: str, **info: Any) -> Run:
    writer = RunWriter(folder / "runs", verb, "small", info)
    writer.close_run("ok")
    (writer.folder / "config.toml").write_text("")
    return load_run(writer.folder)


def words_of(run: Run, place: Workplace, **change: Any) -> list[str]:
    asked = {"settings": (), "seed": None, "steps": None} | change
    words = find_command(run).make_words(place, Path("out"), **asked)
    begin = words.index("--out")
    assert words[begin : begin + 5] == ["--out", "out", "--level", "phases", "--quiet"]
    return words[begin + 5 :]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "tools").mkdir(parents=True)
    (tmp_path / "project" / "tools" / "train.py").write_text("")
    return tmp_path / "project"


def test_a_script_goes_with_its_folder_or_is_named_by_its_copy(project: Path, tmp_path: Path) -> None:
    place = Workplace({project: tmp_path / "copy"})
    whole, copied = str(project / "tools/train.py"), str(tmp_path / "copy/tools/train.py")
    for folder, name, wanted in (
        (project, "tools/train.py", "tools/train.py"),
        (project, whole, copied),
        (tmp_path, "project/tools/train.py", copied),
    ):
        run = make_run(tmp_path, "run", script={"command": [name, "--lr", "1"], "folder": str(folder)})
        assert words_of(run, place) == [wanted, "--lr", "1"]
        assert words_of(run, Workplace()) == [name, "--lr", "1"]


def test_a_module_stays_a_module_and_seeds_and_steps_are_those_of_run(project: Path, tmp_path: Path) -> None:
    script = {"command": ["-m", "tools.train"], "folder": str(project), "max_steps": 30}
    run = make_run(tmp_path, "run", script=script)
    assert words_of(run, Workplace(), seed=3) == ["--seed", "3", "--max-steps", "30", "-m", "tools.train"]
    assert words_of(run, Workplace(), steps=9) == ["--max-steps", "9", "-m", "tools.train"]


def test_a_training_has_its_settings_and_a_model_of_one_s_own_lies_in_the_copy(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run = make_run(tmp_path, "train", settings={"model": {"name": "tools/train.py:build"}})
    words = words_of(run, Workplace({project: tmp_path / "copy"}), settings=("data.images=4",), steps=7)
    named = f"model.name={tmp_path / 'copy/tools/train.py'}:build"
    given = ["--set", "data.images=4", "--set", "training.steps=7", "--set", named]
    assert words == ["--config", str(run.folder / "config.toml"), *given]


def test_a_patch_is_about_the_finding_whose_line_it_changes_or_else_one_of_its_file() -> None:
    patch = Patch.of_text("--- a/lib/head.py\n+++ b/lib/head.py\n@@ -10,2 +10,1 @@\n one\n-two\n", "p")
    for file, line, closeness in (
        ("head.py", 11, 2),
        ("lib/head.py", 10, 2),
        ("head.py", 12, 1),
        ("other/head.py", 11, 0),
        ("neck.py", 11, 0),
    ):
        assert match_place(CodePlace(file=file, line=line, function="f"), patch) == closeness


def test_a_finding_with_a_diff_of_its_own_is_tried_by_that(tmp_path: Path) -> None:
    line = "assert (boxes >= 0).all()"
    (tmp_path / "loss.py").write_text(f"import torch\n{line}\n")
    kept = {"path": "loss.py", "begin": 1, "lines": ["import torch", line], "first": 2, "last": 2}
    census = {"steps": [3, 4, 5], "statements": {"loss.py:2": {**kept, "has_torch": True}}}
    run = write_counted(tmp_path, [place(line=2, code=line)], census=census)
    (found,) = [one for one in summarize(run).findings if one.where]
    patch, about = find_change(TryRequest(run, finding=found.id), load_run(run))
    assert patch is not None and patch.text == found.diff and about is not None and about.id == found.id
    with patched_copies(patch, tmp_path, ()) as (base, changed):
        texts = [(place.copies[tmp_path] / "loss.py").read_text() for place in (base, changed)]
    assert texts == [f"import torch\n{line}\n", "import torch\ntorch._assert_async((boxes >= 0).all())\n"]
