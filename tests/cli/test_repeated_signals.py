"""Signals that come again and again: they end a command once, and nothing they strike on its way is shown."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.cli.main import main
from detscope.machine import interrupts

pytestmark = pytest.mark.processes
MODEL = """
import atexit, pathlib, signal
NUMBER = signal.{name}

def six_times():
    try:
        signal.raise_signal(NUMBER)
    finally:  # what ends because of the first is not struck by the others
        for _ in range(5):
            signal.raise_signal(NUMBER)
        pathlib.Path("unwound").touch()

def factory():
    if NUMBER == signal.SIGINT:
        atexit.register(signal.raise_signal, NUMBER)
    {when}

"""
IN_FORWARD = """
    import torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
        def forward(self, images, targets=None):
            six_times()
    return Net()
"""


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detscope", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.parametrize("when", ["six_times()", IN_FORWARD], ids=["before", "in steps"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_six_signals_at_once_end_a_training_with_its_last_words_alone(
    tmp_path: Path, name: str, when: str
) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(name=name, when=when))
    done = ended(
        tmp_path, "train", "model.py:factory", "--steps", "2", "-q", "--data", "synthetic",
        "--set", "data.images=4", "--num-workers", "0", "--out", "runs",
    )  # fmt: skip
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert (tmp_path / "unwound").exists()
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    if when == IN_FORWARD:
        (said,) = [line for line in done.stderr.splitlines() if "interrupted; " in line]
        assert "steps are kept in runs" in said
    else:
        assert done.stderr == "interrupted\n"


def test_ctrl_c_while_the_command_line_is_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import signal\nfor _ in range(6):\n    signal.raise_signal(signal.SIGINT)\n"
    )
    done = ended(tmp_path, "runs")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_command_in_somebody_elses_process_leaves_ctrl_c_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["detscope", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_script_hears_ctrl_c_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import signal\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    assert ended(tmp_path, "run", "-q", "script.py").stdout == "True\n"


def test_after_a_pause_one_more_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(interrupts, "monotonic", lambda: now[0])
    interrupts.expect_interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupts.interrupt_once()
    for _ in range(20):  # a key that is held down
        now[0] += 0.1
        interrupts.interrupt_once()
    now[0] += 2
    with pytest.raises(KeyboardInterrupt):
        interrupts.interrupt_once()
    interrupts.expect_interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupts.interrupt_once()
