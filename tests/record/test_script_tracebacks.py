from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from detscope.record.script import endings as stopping
from detscope.record.script import endings as tracebacks


def through_us(raises):
    """Calls by way of a file in the recorder's room, as a hook does."""
    code = compile("raises()", str(Path(stopping.__file__).with_name("hook.py")), "exec")
    exec(code, {"raises": raises})


def test_our_frames_are_taken_out_of_an_error_and_of_its_causes():
    def inner():
        raise KeyError("cause")

    def outer():
        try:
            through_us(inner)
        except KeyError as error:
            raise ValueError("effect") from error

    with pytest.raises(ValueError, match="effect") as caught:
        through_us(outer)
    assert "hook.py" in "".join(traceback.format_exception(caught.value))
    tracebacks.clean_error(caught.value, "")
    text = "".join(traceback.format_exception(caught.value))
    assert "hook.py" not in text
    assert "inner" in text
    assert "outer" in text


def test_an_error_without_frames_of_the_script_has_none_left():
    try:
        compile("print(1", "script.py", "exec")
    except SyntaxError as error:
        tracebacks.clean_error(error, __file__)
        assert error.__traceback__ is None


def test_our_frames_are_taken_out_of_a_worker_s_text():
    own = Path(stopping.__file__).with_name("loading.py")
    text = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in loop\n    fetch()\n'
        f'  File "{own}", line 70, in fetch_timed\n    batch = plain(self, index)\n            ^^^^^^\n'
        '  File "script.py", line 7, in __getitem__\n    raise ValueError\nValueError\n'
    )
    error = ValueError(text)
    tracebacks.forget_own_frames(error)
    assert error.args[0] == (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in loop\n    fetch()\n'
        '  File "script.py", line 7, in __getitem__\n    raise ValueError\nValueError\n'
    )
