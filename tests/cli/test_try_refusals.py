"""What `detscope try` cannot try, said in a line before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from detscope.cli.main import app
from detscope.errors import DetscopeError
from detscope.runs.writer import RunWriter

GIVEN = ("--env", "A=1")
PATCH = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-import other\n+import torch\n"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_run(verb: str, **info: Any) -> str:
    writer = RunWriter(Path("runs"), verb, "small", info)
    writer.close_run("ok")
    return str(writer.folder)


def refusal(*words: str) -> DetscopeError:
    done = CliRunner().invoke(app, ["try", *words], standalone_mode=False)
    assert isinstance(done.exception, DetscopeError), done.output
    return done.exception


@pytest.mark.parametrize(
    ("verb", "info", "why"),
    [
        ("import", {}, "it was imported"),
        ("record", {}, "a loop of one's own has no command"),
        ("eval", {}, "runs of `eval` are not tried"),
        ("train", {}, "it has no config.toml"),
        ("train", {"ranks": {"count": 2}}, "it is a job of 2 ranks"),
        ("run", {"script": {"command": [], "folder": "."}}, "its command is not known"),
        ("run", {"script": {"command": ["train.py"], "folder": "/nowhere"}}, "the folder /nowhere is gone"),
        ("run", {"script": {"command": ["gone.py"], "folder": "."}}, "gone.py is gone"),
    ],
)
def test_runs_without_a_command_that_could_run_again(verb: str, info: dict[str, Any], why: str) -> None:
    error = refusal(make_run(verb, **info), *GIVEN)
    assert error.exit_code == 3 and "cannot be tried" in error.message and why in error.message


@pytest.fixture
def script_run(tmp_path: Path) -> str:
    Path("train.py").write_text("import torch\n")
    return make_run("run", script={"command": ["train.py"], "folder": str(tmp_path)})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "nothing to try"),
        (("--env", "A"), "--env 'A' is not NAME=VALUE"),
        (("--set", "training.steps=4"), "--set is of runs of train and infer"),
        ((*GIVEN, "--rounds", "1"), "--rounds 1: two pairs are the least"),
        ((*GIVEN, "--steps", "0"), "--steps 0: one is the least"),
        ((*GIVEN, "--seed", "-1"), "--seed -1 is none"),
        ((*GIVEN, "--seed", str(2**64)), f"--seed {2**64} is none"),
        ((*GIVEN, "--budget", "0s"), "--budget leaves no time"),
        ((*GIVEN, "--budget", "9" * 400 + "h"), "--budget leaves no time, or has no end"),
        ((*GIVEN, "--tolerance", "-1"), "--tolerance -1.0 is no share"),
        ((*GIVEN, "--budget", "soon"), "--budget 'soon' is not a time"),
        (("--finding", "nothing-12345678"), "the run has no finding 'nothing-12345678'"),
        ((*GIVEN, "--json", "--markdown", "-"), "both want standard output"),
    ],
)
def test_wrong_words(script_run: str, words: tuple[str, ...], told: str) -> None:
    error = refusal(script_run, *words)
    assert error.exit_code == 2 and told in error.message


def test_a_patch_that_does_not_apply_names_hunk_and_file_and_leaves_nothing_behind(script_run: str) -> None:
    Path("change.diff").write_text(PATCH)
    error = refusal(script_run, "--patch", "change.diff")
    assert error.exit_code == 3
    assert error.message == "change.diff: hunk 1 (@@ -1 +1 @@) of train.py does not apply"
    assert [path.name for path in Path("runs").iterdir() if path.name.startswith("try-")] == []
    assert Path("train.py").read_text() == "import torch\n"
