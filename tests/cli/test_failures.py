from __future__ import annotations

import pytest

from detscope.cli.failures import run_guarded
from detscope.errors import InputError, InterruptedRun, MachineError, SettingsError


def raising(error: BaseException):
    def command() -> object:
        raise error

    return command


@pytest.fixture(autouse=True)
def not_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETSCOPE_DEBUG", raising=False)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (InputError("a.jpg: empty", "remove it"), 3, "error: a.jpg: empty\nhint: remove it\n"),
        (MachineError("no CUDA"), 4, "error: no CUDA\n"),
        (InterruptedRun("stopped", "resume"), 130, "error: stopped\nhint: resume\n"),
        (SettingsError(["one", "two"], "see"), 2, "error: one\nerror: two\nhint: see\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_error_becomes_its_lines_and_its_exit_code(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_guarded(raising(error), ["train"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", told)


def test_an_unexpected_error_is_one_line_and_the_command_that_shows_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_guarded(raising(ZeroDivisionError("a\nb")), ["train", "my model"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("internal error: ZeroDivisionError: a b (test_failures.py:")
    assert second == "hint: for the traceback: detscope --debug train 'my model'"


def test_an_unexpected_error_with_a_log_names_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("boom")
    error.detscope_log = "runs/x/log.txt"  # type: ignore[attr-defined]
    assert run_guarded(raising(error), ["train"]) == 1
    assert capsys.readouterr().err.endswith("hint: the traceback is in runs/x/log.txt\n")


def test_debug_after_the_verb_belongs_to_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    run_guarded(raising(RuntimeError("boom")), ["run", "script.py", "--debug"])
    assert "Traceback" not in capsys.readouterr().err
    run_guarded(raising(RuntimeError("boom")), ["--debug", "run", "script.py"])
    assert "Traceback" in capsys.readouterr().err


def test_a_result_that_is_no_exit_code_means_success() -> None:
    assert run_guarded(lambda: None, []) == 0
    assert run_guarded(lambda: 4, []) == 4
