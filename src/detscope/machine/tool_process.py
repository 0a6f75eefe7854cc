"""Running a program to its end, with a limit of time, and leaving nothing of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from detscope.errors import MachineError

GRACE_SECONDS = 10.0
_TAIL_BYTES = 200_000


def run_tool(
    command: Sequence[str], log: Path, timeout_s: float, extra: Mapping[str, str]
) -> tuple[int, str]:
    """Exit code and the last words of both outputs. However this ends, the process group is gone."""
    with log.open("wb") as output, _terminated_as_exit():
        with _signals_kept() as kept:
            try:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **extra},
                    start_new_session=True,
                )
            except OSError as error:
                raise MachineError(
                    f"{Path(command[0]).name} cannot be started: {error.strerror or error}",
                    "check that it can be run by hand",
                ) from error
        try:
            for number in kept:
                signal.raise_signal(number)
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise MachineError(
                f"{Path(command[0]).name} did not end within {timeout_s / 60:.0f} minutes and was stopped",
                "give a smaller --window",
            ) from None
        finally:
            _end_group(process)
    return code, _tail(log)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask every process of the group to end, then end what is left; also after the leader is gone."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break  # nobody left
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


@contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """While a tool runs, SIGTERM unwinds the stack like Ctrl-C does, so that the tool is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """While a process is started: an exception of a signal's would leave nobody who knows of the process."""
    kept: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield kept
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda heard, _frame: kept.append(heard)) for number in signals}
    try:
        yield kept
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
