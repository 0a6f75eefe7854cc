"""Opening recorded traces: against HolisticTraceAnalysis on one file, and by size on generated files.

Every reading runs in a process of its own, so that peak memory is its own. HolisticTraceAnalysis is taken
from this environment, or put into a throwaway one.

Modules are imported before the clock starts, on both sides: `hta.trace_analysis` brings its parser,
its analysers, pandas and all of numpy; ours finds a file's reader when it sees the file and would import it
then, so the reader is imported beforehand, and `numpy.ma`, which pandas brings and our tables ask for late.
Nothing is warmed up by reading a file. `before` is the peak up to there, so growth counts on neither side
what importing took, and on both sides the code pages of libraries that only the reading touches.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROUNDS = 3
SIZES_MB = (10, 100, 300)
RECORDED = "traces/kineto/v100_rank1of2_memory_events.json.gz"
OPERATORS_PER_STEP = 400

# both print seconds from the file to the breakdown, and peak memory before and after, in bytes
COMMON = """
import json, sys, tempfile, time
def peak():
    # not getrusage: its figure begins with that of the process that started this one
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
"""
OURS = (
    COMMON
    + """
from pathlib import Path
import numpy.ma
import polars as pl
from detscope.ingest.sink import Format
from detscope.parts import parts_of
from detscope.analyze.summary import summarize
from detscope.ingest.recordings import import_files
from detscope.runs.reader import load_run
parts_of("formats", Format)
with tempfile.TemporaryDirectory() as folder:
    before, start = peak(), time.perf_counter()
    (run,) = import_files([Path(sys.argv[1])], Path(folder)).runs
    read = time.perf_counter() - start
    summary = summarize(run)
    seconds, after = time.perf_counter() - start, peak()
    kernels = load_run(run).table("device_events").filter(pl.col("kind") == "kernel")
    print(json.dumps({"seconds": seconds, "read_seconds": read, "before": before, "after": after,
        "kernels": kernels.height, "kernel_ns": int(kernels["wall_ns"].sum()),
        "operators": kernels["operator"].null_count(), "steps": summary.device_use.steps}))
"""
)
THEIRS = (
    COMMON
    + """
from hta.trace_analysis import TraceAnalysis
before, start = peak(), time.perf_counter()
analysis = TraceAnalysis(trace_files={1: sys.argv[1]}, trace_dir=sys.argv[1].rpartition("/")[0])
frame = analysis.get_temporal_breakdown(visualize=False)
seconds, after = time.perf_counter() - start, peak()
found = {"seconds": seconds, "before": before, "after": after, "breakdown": frame.to_dict("records")}
print("\\n" + json.dumps(found))
"""
)


def main() -> None:
    """Both comparisons; the first only where the recorded file is."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(os.environ.get("DETSCOPE_RECORDED") or "../shared/data").resolve() / RECORDED
        if recorded.is_file():
            against_peer(recorded, Path(folder))
        else:
            print(f"\nimport against HolisticTraceAnalysis: skipped, no {recorded}; set DETSCOPE_RECORDED")
        by_size(
            Path(folder), [int(size) for size in os.environ.get("BENCH_SIZES_MB", "").split()] or SIZES_MB
        )


def against_peer(trace: Path, folder: Path) -> None:
    """Seconds and peak memory of both on one file, in turns."""
    python = peer_python(folder)
    if python is None:
        print("\nimport against HolisticTraceAnalysis: skipped, it could not be installed")
        return
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(child(python, THEIRS, trace))
        ours.append(child(sys.executable, OURS, trace))
    faster = statistics.median(b["seconds"] / a["seconds"] for a, b in zip(ours, theirs, strict=True))
    whole = statistics.median(a["after"] / b["after"] for a, b in zip(ours, theirs, strict=True))
    growth = statistics.median(
        (a["after"] - a["before"]) / (b["after"] - b["before"]) for a, b in zip(ours, theirs, strict=True)
    )
    print(f"\nimport of {trace.name} against HolisticTraceAnalysis, from file to breakdown, {ROUNDS} rounds")
    print(f"  times as fast: {faster:.1f}  {'holds' if faster >= 5 else 'MISSED'} (aim >= 5)")
    print(
        f"  peak memory of the process: {whole:.2f}  {'holds' if whole <= 1 / 3 else 'MISSED'} (aim <= 0.33)"
    )
    print(f"  growth of peak memory: {growth:.2f}  {'holds' if growth <= 1 / 3 else 'MISSED'} (aim <= 0.33)")
    print(f"  theirs: {theirs[0]['breakdown']}")


def by_size(folder: Path, sizes_mb: tuple[int, ...] | list[int]) -> None:
    """Generated traces with known totals: exact, bounded, linear."""
    print("\nimport of generated traces")
    per_mb = []
    for size in sizes_mb:
        trace = folder / f"generated_{size}mb.json"
        expected = generate(trace, size * 1_000_000)
        found = child(sys.executable, OURS, trace)
        growth = (found["after"] - found["before"]) / 1e6
        per_mb.append(found["seconds"] / size)
        exact = all(found[key] == expected[key] for key in expected)
        print(
            f"  {size} MB: {found['seconds']:.2f} s, {per_mb[-1] * 1e3:.1f} ms per MB, peak memory growth"
            f" {growth:.0f} MB {'holds' if growth < 500 else 'MISSED'} (aim < 500),"
            f" totals {'exact' if exact else f'WRONG: {found} instead of {expected}'}"
        )
        trace.unlink()
    if len(per_mb) > 1:
        bend = per_mb[-1] / per_mb[0]
        held = "holds" if bend <= 1.5 else "MISSED"
        print(f"  time per MB, largest over smallest: {bend:.2f}  {held} (aim <= 1.5)")


def child(python: str, code: str, trace: Path) -> dict[str, Any]:
    """Run one reading and take its last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code, str(trace)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def peer_python(folder: Path) -> str | None:
    """An interpreter that has HolisticTraceAnalysis: this one, or one made for the occasion."""
    probe = [sys.executable, "-W", "ignore", "-c", "import hta.trace_analysis"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return sys.executable
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is None:
        return None
    python = folder / "peer" / "bin" / "python"
    make = [uv, "venv", "-q", "--python", sys.executable, str(folder / "peer")]
    fill = [uv, "pip", "install", "-q", "--python", str(python), "HolisticTraceAnalysis", "setuptools<81"]
    for command in (make, fill):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(
                done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "uv failed", file=sys.stderr
            )
            return None
    return str(python)


def generate(path: Path, size: int) -> dict[str, int]:
    """A trace of at least so many bytes; returns its totals."""
    written, step, kernels, kernel_ns, time_us = 0, 0, 0, 0, 1_700_000_000_000_000
    with path.open("w") as file:
        written += file.write('{\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        while written < size:
            begin = time_us
            for index in range(OPERATORS_PER_STEP):
                kernels, wall = kernels + 1, 5 + index % 17
                written += file.write(_operator(kernels, time_us, wall, index))
                kernel_ns, time_us = kernel_ns + wall * 1000, time_us + 40
            mark = _event("user_annotation", f"ProfilerStep#{step}", 100, begin, time_us - begin, {})
            written += file.write(mark)
            step += 1
        file.write('  {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {}}\n  ]\n}\n')
    return {"kernels": kernels, "kernel_ns": kernel_ns, "operators": 0, "steps": step}


def _operator(number: int, time_us: int, wall: int, index: int) -> str:
    """An operator, its launch, the flow between them and the kernel, as torch.profiler writes them."""
    types = {"Ev Idx": number, "Input Dims": [[8, index, 64], []], "Input type": ["float", "Scalar"]}
    linked = {"External id": number, "correlation": number}
    kernel = {
        **linked,
        "device": 0,
        "context": 1,
        "stream": 7,
        "blocks per SM": 1.5,
        "warps per SM": 12.0,
        "grid": [120, 1, 1],
        "block": [256, 1, 1],
        "est. achieved occupancy %": 19,
    }
    name = f"void at::native::vectorized_elementwise_kernel<4, Functor{index % 40}<float>, Array<3> >(int)"
    flow = {"ph": "s", "id": number, "pid": 100, "tid": 100, "ts": time_us + 5, "cat": "ac2g", "name": "ac2g"}
    return (
        _event("cpu_op", f"aten::op{index % 60}", 100, time_us, 30, {"External id": number, **types})
        + _event("cuda_runtime", "cudaLaunchKernel", 100, time_us + 5, 6, {**linked, "cbid": 211})
        + f"  {json.dumps(flow)},\n"
        + _event("kernel", name, 0, time_us + 12, wall, kernel)
    )


def _event(category: str, name: str, process: int, time_us: int, wall_us: int, args: dict[str, Any]) -> str:
    thread = process or 7
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {thread},\n'
        f'    "ts": {time_us}, "dur": {wall_us},\n    "args": {json.dumps(args)}\n  }},\n'
    )


if __name__ == "__main__":
    main()
