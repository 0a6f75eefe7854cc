"""What this machine's arithmetic and memory can do at most: measured once, kept in the user's cache."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from detscope.machine.facts import cpu_model

_SIDE = 1024
_BYTES = 64 * 2**20
_REPEATS = 5


def machine_peak(device: str, threads: int) -> dict[str, Any]:
    """Peak FLOP/s (fp32 matrix product) and bytes/s (copy); from the cache where it was measured before."""
    import torch

    name = (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else cpu_model() or "unknown processor"
    )
    key = f"{name}|{device.split(':')[0]}|{threads}|{torch.__version__}"
    path = _cache_file()
    known = _read(path)
    if key not in known:
        known[key] = _measure(device)
        _keep(path, known)
    return {**known[key], "device": name, "threads": threads, "definition": _DEFINITION}


_DEFINITION = (
    f"fp32 product of two {_SIDE} x {_SIDE} matrices and a copy of {_BYTES >> 20} MiB (read and written),"
    f" best of {_REPEATS}, on this machine"
)


def _measure(device: str) -> dict[str, float]:
    import torch

    first = torch.rand(_SIDE, _SIDE, device=device)
    source = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product_s = min(_timed(lambda: first @ first, device) for _ in range(_REPEATS))
    copy_s = min(_timed(lambda: target.copy_(source), device) for _ in range(_REPEATS))
    return {"peak_flops_per_s": 2 * _SIDE**3 / product_s, "bandwidth_bytes_per_s": 2 * _BYTES / copy_s}


def _timed(work: Any, device: str) -> float:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "detscope" / "peak.json"


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep(path: Path, known: dict[str, dict[str, float]]) -> None:
    """A cache that cannot be written is measured again the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(known, indent=2), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return
