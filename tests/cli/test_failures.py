from __future__ import annotations

from pathlib import Path

import pytest

import detscope
from detscope.cli.failures import run_guarded
from detscope.errors import InputError, InterruptedRun, MachineError, SettingsError


def raising(error: BaseException):
    def command() -> object:
        raise error

    return command


def raising_inside_of_us(error: BaseException):
    """Raise it in a line of detscope's own; what a test raises is somebody else's code."""

    def command() -> object:
        exec(
            compile("raise error", str(Path(detscope.__file__).with_name("some.py")), "exec"),
            {"error": error},
        )

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
    assert run_guarded(raising_inside_of_us(ZeroDivisionError("a\nb")), ["train", "my model"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("internal error: ZeroDivisionError: a b (some.py:")
    assert second == "hint: for the traceback: detscope --debug train 'my model'"


def test_an_unexpected_error_with_a_log_names_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("boom")
    error.detscope_log = "runs/x/log.txt"  # type: ignore[attr-defined]
    assert run_guarded(raising_inside_of_us(error), ["train"]) == 1
    assert capsys.readouterr().err.endswith("hint: the traceback is in runs/x/log.txt\n")


def test_debug_after_the_verb_belongs_to_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    run_guarded(raising(RuntimeError("boom")), ["run", "script.py", "--debug"])
    assert "Traceback" not in capsys.readouterr().err
    run_guarded(raising(RuntimeError("boom")), ["--debug", "run", "script.py"])
    assert "Traceback" in capsys.readouterr().err


def test_a_result_that_is_no_exit_code_means_success() -> None:
    assert run_guarded(lambda: None, []) == 0
    assert run_guarded(lambda: 4, []) == 4


def test_what_steers_a_terminal_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(raising(InputError("a\x1b]0;x\x07b.jpg", "\x9b31m")), ["train"]) == 3
    assert capsys.readouterr().err == "error: a\\x1b]0;x\\x07b.jpg\nhint: \\x9b31m\n"


def test_what_the_machine_refuses_is_no_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def read_folder() -> None:
        Path("/").read_text()

    def read_too_long() -> None:
        Path("x" * 5000).stat()

    def read_nul() -> None:
        Path("a\0b").read_text()

    beyond = RuntimeError("value cannot be converted to type float without overflow")
    for command, told in (
        (read_nul, "NUL character"),
        (lambda: Path().with_name("x"), "is empty"),
        (raising(beyond), "beyond what"),
    ):
        assert run_guarded(raising_inside_of_us_from(command), ["show"]) == 2
        assert told in capsys.readouterr().err
    for command in (
        read_folder,
        read_too_long,
        raising(MemoryError()),
        raising(RuntimeError("can't start new thread")),
        raising(OSError(27, "File too large")),
    ):
        # whatever line of theirs or ours asked for it
        code = run_guarded(raising_inside_of_us_from(command), ["show"])
        assert code == 4, capsys.readouterr().err
        assert capsys.readouterr().err.startswith("error: ")


def raising_inside_of_us_from(command):
    """The error of a command, raised again by a line of detscope's own."""
    try:
        command()
    except BaseException as error:
        return raising_inside_of_us(error.with_traceback(None))
