"""What this machine's arithmetic and memory can do at most: measured once, kept in the user's cache."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
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
    known: Any = None
    with suppress(OSError, ValueError):
        known = json.loads(path.read_text(encoding="utf-8"))
    known = known if isinstance(known, dict) else {}
    if key not in known:
        first = torch.rand(_SIDE, _SIDE, device=device)
        source = torch.empty(_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        product_s = min(_time_work(lambda: first @ first, device) for _ in range(_REPEATS))
        copy_s = min(_time_work(lambda: target.copy_(source), device) for _ in range(_REPEATS))
        found = {"peak_flops_per_s": 2 * _SIDE**3 / product_s, "bandwidth_bytes_per_s": 2 * _BYTES / copy_s}
        known[key] = found
        with suppress(OSError):  # a cache that cannot be written is measured again the next time
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps(known, indent=2), encoding="utf-8")
            temporary.replace(path)
    return {**known[key], "device": name, "threads": threads, "definition": _DEFINITION}


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
