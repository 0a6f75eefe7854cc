"""Programs that detscope can use but does not need: browser, Nsight, make, docker.

One that is run has a limit of time, and nothing of it is left behind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from detscope.errors import DetscopeError, MachineError

Kind = Literal["systems", "compute"]
KINDS: tuple[Kind, ...] = ("systems", "compute")
PROGRAMS: dict[Kind, str] = {"systems": "nsys", "compute": "ncu"}
NAMES: dict[Kind, str] = {"systems": "Nsight Systems", "compute": "Nsight Compute"}
PIPES = ("fma", "fp16", "tensor", "xu")
METRICS = (
    "gpc__cycles_elapsed.max",
    *(f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_elapsed" for pipe in PIPES),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__time_duration.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)
PERMISSION = "ERR_NVGPUCTRPERM"
_UNKNOWN_METRIC = re.compile(r"(?i)(?:failed to find|unknown|unsupported|no such)[^\n]*?\b([a-z]+__[\w.]+)")
_CHILD_ERROR = re.compile(r"^error: (.+)$", re.MULTILINE)
_CHILD_HINT = re.compile(r"^hint: (.+)$", re.MULTILINE)
_NO_DEVICE = re.compile(
    r"(?i)no CUDA device|no CUDA-capable device|no NVIDIA driver|CUDA driver version is insufficient|"
    r"CUDA_ERROR_NO_DEVICE|not compiled with CUDA|built without CUDA"
)

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


def require_tool(kind: Kind) -> Path:
    """The tool's program, or how to get it."""
    found = find_nsight(PROGRAMS[kind])
    if found is None:
        raise MachineError(
            f"{NAMES[kind]} is not on this machine: no `{PROGRAMS[kind]}` on PATH",
            f"install NVIDIA's nsight-{kind} package or put `{PROGRAMS[kind]}` on PATH; "
            "a file recorded elsewhere opens with `detscope import FILE`",
        )
    return found


def systems_command(nsys: Path, report: Path, command: Sequence[str]) -> list[str]:
    """Record CUDA and NVTX between the profiler's start and stop; sampling would only disturb."""
    return [
        str(nsys), "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--force-overwrite=true",
        f"--output={report}", *command,
    ]  # fmt: skip


def export_command(nsys: Path, report: Path, database: Path) -> list[str]:
    """Turn a report into SQLite."""
    return [
        str(nsys), "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report),
    ]  # fmt: skip


def compute_command(ncu: Path, listing: Path, metrics: Sequence[str], command: Sequence[str]) -> list[str]:
    """Count every kernel between the profiler's start and stop; units without prefixes."""
    return [
        str(ncu), "--profile-from-start", "off", "--target-processes", "all", "--csv", "--page", "raw",
        "--print-units", "base", "--metrics", ",".join(metrics), "--log-file", str(listing), *command,
    ]  # fmt: skip


def unknown_metrics(said: str, asked: Sequence[str]) -> list[str]:
    """Metrics that this device or version does not have, by what the tool said."""
    named = {name.rstrip(".") for name in _UNKNOWN_METRIC.findall(said)}
    return [metric for metric in asked if any(metric == name or metric.startswith(name) for name in named)]


def explain_failure(kind: Kind, code: int, said: str) -> DetscopeError | None:
    """What the tool's or the command's words mean; None where nothing went wrong."""
    if PERMISSION in said:
        return MachineError(
            f"no permission to read the GPU's performance counters ({PERMISSION})",
            "an administrator allows it with the driver option NVreg_RestrictProfilingToAdminUsers=0;"
            " else run as root, in a container with --cap-add=SYS_ADMIN",
        )
    child = _CHILD_ERROR.findall(said)
    if _NO_DEVICE.search(said):
        about = (line.strip()[:200] for line in said.splitlines() if _NO_DEVICE.search(line))
        reason = child[-1] if child else next(about, "none found")
        return MachineError(
            f"{NAMES[kind]} needs a CUDA device: {reason}",
            "run it where there is a GPU; see `detscope doctor`",
        )
    if code == 0:
        return None
    if child:
        hints = _CHILD_HINT.findall(said)
        return CommandFailed(child[-1], hints[-1] if hints else "")
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    return MachineError(f"{PROGRAMS[kind]} ended with code {code}: {last[:200]}", "try the command by hand")


class CommandFailed(MachineError):
    """The command under the tool failed by itself; other batch sizes may work."""


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
