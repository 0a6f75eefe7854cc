"""Programs that detscope can use but does not need: browser, Nsight, make, docker.

One that is run has a limit of time, and nothing of it is left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from detscope.errors import MachineError

GRACE_SECONDS = 10.0
_TAIL_BYTES = 200_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Nsight's installers leave PATH alone; these are the places they unpack to, newest last by name.
_NSIGHT_PLACES = {
    "nsys": (
        "/opt/nvidia/nsight-systems/*/bin",
        "/usr/local/cuda*/bin",
        "/opt/nvidia/nsight-systems-cli/*/bin",
    ),
    "ncu": ("/opt/nvidia/nsight-compute/*", "/usr/local/cuda*/bin", "/usr/local/cuda*/nsight-compute*"),
}
_PLAYWRIGHT_PLACES = ("chromium-*/chrome-linux*/chrome", "chromium_headless_shell-*/*/*headless*shell")


def find_program(names: Iterable[str]) -> Path | None:
    """The first of these programs that is on PATH."""
    found = (shutil.which(name) for name in names)
    return next((Path(path) for path in found if path), None)


def find_browser() -> Path | None:
    """A Chromium on PATH, or one that Playwright has downloaded for this user."""
    on_path = find_program(BROWSERS)
    if on_path:
        return on_path
    cache = Path.home() / ".cache" / "ms-playwright"
    places = (path for pattern in _PLAYWRIGHT_PLACES for path in sorted(cache.glob(pattern), reverse=True))
    return next(places, None)


def find_nsight(name: str, root: Path = Path("/")) -> Path | None:
    """`nsys` or `ncu`, on PATH or where NVIDIA's installers put it below `root`."""
    on_path = find_program((name,))
    if on_path:
        return on_path
    for pattern in _NSIGHT_PLACES[name]:
        for folder in sorted(root.glob(pattern.lstrip("/")), reverse=True):
            if (folder / name).is_file():
                return folder / name
    return None


def run_tool(
    command: Sequence[str], log: Path, timeout_s: float, extra: Mapping[str, str]
) -> tuple[int, str]:
    """Exit code and the last words of both outputs. However this ends, the process group is gone."""
    kept: list[int] = []

    def leave_process(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # While the tool runs, SIGTERM unwinds the stack like Ctrl-C does, so that the tool is ended too; while it
    # is started, signals are kept: an exception of theirs would leave nobody who knows of the process.
    with log.open("wb") as output, _signal_handlers(leave_process, signal.SIGTERM):
        with _signal_handlers(lambda heard, _frame: kept.append(heard), signal.SIGINT, signal.SIGTERM):
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
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return code, file.read().decode("utf-8", "replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask every process of the group to end, then end what is left; also after the leader is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break  # nobody left
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    process.poll()


@contextmanager
def _signal_handlers(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals
) -> Iterator[None]:
    """Another handler for some signals; only the main thread may set one."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
