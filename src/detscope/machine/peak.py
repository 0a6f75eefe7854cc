"""What this machine's arithmetic and memory can do at most: measured once, kept in the user's cache."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detscope.machine.facts import cpu_model

_SIDE = 1024
_BYTES = 64 * 2**20
_REPEATS = 5
_DEFINITION = (
    f"fp32 product of two {_SIDE} x {_SIDE} matrices and a copy of {_BYTES >> 20} MiB (read and written),"
    f" best of {_REPEATS}, on this machine"
)


def machine_peak(device: str, threads: int) -> dict[str, Any]:
    """Peak FLOP/s (fp32 matrix product) and bytes/s (copy); from the cache where it was measured before."""
    import torch

    on_cuda = device.startswith("cuda")
    name = torch.cuda.get_device_name(device) if on_cuda else cpu_model() or "unknown processor"
    key = f"{name}|{device.split(':')[0]}|{threads}|{torch.__version__}"
    base = os.environ.get("XDG_CACHE_HOME")
    path = (Path(base) if base else Path.home() / ".cache") / "detscope" / "peak.json"
    known = _read_cache(path)
    if key not in known:
        known[key] = _measure_peak(device)
        _write_cache(path, known)
    return {**known[key], "device": name, "threads": threads, "definition": _DEFINITION}


def _measure_peak(device: str) -> dict[str, float]:
    import torch

    first = torch.rand(_SIDE, _SIDE, device=device)
    source = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product_s = min(_time_work(lambda: first @ first, device) for _ in range(_REPEATS))
    copy_s = min(_time_work(lambda: target.copy_(source), device) for _ in range(_REPEATS))
    return {"peak_flops_per_s": 2 * _SIDE**3 / product_s, "bandwidth_bytes_per_s": 2 * _BYTES / copy_s}


def _time_work(work: Callable[[], Any], device: str) -> float:
    import torch

    def wait_for_device() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    wait_for_device()
    begin = time.perf_counter()
    work()
    wait_for_device()
    return time.perf_counter() - begin


def _read_cache(path: Path) -> dict[str, dict[str, float]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_cache(path: Path, known: dict[str, dict[str, float]]) -> None:
    """A cache that cannot be written is measured again the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(known, indent=2), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return
