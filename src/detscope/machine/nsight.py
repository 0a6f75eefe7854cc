"""NVIDIA's command-line profilers: their command lines, and what their failures mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from detscope.errors import DetscopeError, MachineError
from detscope.machine.programs import find_nsight

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
