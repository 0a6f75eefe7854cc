"""What a machine's arithmetic and memory can do at most: measured once per precision, kept in a cache.

On a device many products are queued at once and waited for once, and its own clock tells: a single product
would be mostly its launch and the wait for it. Which size is fastest differs, so several are tried.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from detscope.machine.accelerator import Accelerator, find_accelerator
from detscope.machine.describe import read_precision_switches
from detscope.machine.facts import cpu_model

_CPU_SIDES, _SIDES = (1024,), (1024, 2048, 4096, 8192)
_CPU_BYTES, _BYTES = 64 << 20, 512 << 20  # the last must be far beyond any cache
_REPEATS = 5
_QUEUE_S = 0.05  # of work between two marks
_MOST_QUEUED = 200
_SHARE_OF_FREE = 0.25
_FIRST_TF32 = 8  # major capability


def machine_peak(device: str, threads: int, precision: str = "fp32") -> dict[str, Any]:
    """Peak FLOP/s of products in the precision that ran, and bytes/s of a copy; measured once.

    `precision` is the training's: fp32, bf16, fp16. What fp32 means on the device is found out here.
    """
    import torch

    accelerator = find_accelerator(device)
    on_host = accelerator.is_host
    ask = getattr(getattr(torch, accelerator.kind, None), "get_device_name", None)
    name = (cpu_model() or "unknown processor") if on_host else ask(device) if ask else device
    arithmetic = choose_arithmetic(accelerator, precision)
    key = f"{name}|{accelerator.kind}|{threads}|{torch.__version__}"
    path = _cache_path()
    known = _read_cache(path)
    entry = known.get(key) or {}
    if not on_host and "roofs" not in entry:  # of an earlier version: launches were in its times
        entry = {}
    roofs: dict[str, float] = dict(entry.get("roofs") or {})
    if on_host and "peak_flops_per_s" in entry:
        roofs.setdefault("fp32", entry["peak_flops_per_s"])
    if arithmetic not in roofs:
        roofs[arithmetic] = measure_products(accelerator, arithmetic)
        if "bandwidth_bytes_per_s" not in entry:
            entry["bandwidth_bytes_per_s"] = measure_copies(accelerator)
        known[key] = entry | {"roofs": roofs, "peak_flops_per_s": roofs.get("fp32", roofs[arithmetic])}
        _write_cache(path, known)
    sides = _CPU_SIDES if on_host else _SIDES
    largest, size = f"{sides[-1]} x {sides[-1]}", (_CPU_BYTES if on_host else _BYTES) >> 20
    how = "" if on_host else f" (of {sides[0]} rows or more, many queued at once, by the device's clock)"
    return {
        "peak_flops_per_s": roofs[arithmetic],
        "bandwidth_bytes_per_s": entry["bandwidth_bytes_per_s"],
        "precision": arithmetic,
        "roofs": roofs,
        "device": name,
        "threads": threads,
        "definition": f"{arithmetic} product of two {largest} matrices{how} and a copy of {size} MiB"
        f" (read and written), best of {_REPEATS}, on this machine",
    }


def choose_arithmetic(accelerator: Accelerator, precision: str) -> str:
    """In what a network of this precision computes: fp32, tf32, bf16 or fp16.

    Most work of a detector are convolutions, so cuDNN's switch decides for fp32.
    """
    if precision != "fp32" or accelerator.kind != "cuda":
        return precision
    import torch

    has_tf32 = (
        torch.version.hip is None and torch.cuda.get_device_capability(accelerator.name)[0] >= _FIRST_TF32
    )
    return "tf32" if has_tf32 and read_precision_switches(torch)["tf32_cudnn"] else "fp32"


def measure_products(accelerator: Accelerator, arithmetic: str) -> float:
    """FLOP/s of the fastest product."""
    import torch

    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    kind = kinds.get(arithmetic, torch.float32)
    found: list[float] = []
    with _set_tf32(torch, arithmetic == "tf32", accelerator):
        for side in _CPU_SIDES if accelerator.is_host else _SIDES:
            if found and 3 * side * side * kind.itemsize > _room(accelerator):
                break
            one = torch.rand(side, side, device=accelerator.name).to(kind)
            found.append(2 * side**3 / time_work(accelerator, partial(torch.mm, one, one)))
    return max(found)


def measure_copies(accelerator: Accelerator) -> float:
    """Bytes per second that a copy reads and writes."""
    import torch

    size = _CPU_BYTES if accelerator.is_host else int(min(_BYTES, _room(accelerator) / 2))
    source = torch.empty(size, dtype=torch.uint8, device=accelerator.name)
    target = torch.empty_like(source)
    return 2 * size / time_work(accelerator, lambda: target.copy_(source))


def time_work(accelerator: Accelerator, work: Callable[[], object]) -> float:
    """Seconds of one piece of work, the best of a few; on a device many are queued between two marks."""
    if accelerator.is_host:
        return min(_time_once(accelerator, work, 1) for _ in range(_REPEATS))
    once = _time_once(accelerator, work, 1)  # kernels are chosen, libraries are started
    once = min(once, _time_once(accelerator, work, 1))
    count = int(min(_MOST_QUEUED, max(4, _QUEUE_S / once)))
    return min(_time_once(accelerator, work, count) for _ in range(_REPEATS))


def _time_once(accelerator: Accelerator, work: Callable[[], object], count: int) -> float:
    accelerator.wait()
    if not accelerator.has_clock:
        begin = time.perf_counter()
        for _ in range(count):
            work()
        accelerator.wait()
        return (time.perf_counter() - begin) / count
    first, last = accelerator.make_mark(), accelerator.make_mark()
    work()  # the device is busy when it comes to the first mark: launches after it are hidden
    accelerator.put_mark(first)
    for _ in range(count):
        work()
    accelerator.put_mark(last)
    accelerator.wait()
    return accelerator.elapsed_ns(first, last) / 1e9 / count


def _room(accelerator: Accelerator) -> float:
    memory = accelerator.read_memory()
    free = None if memory is None else memory.free
    return float("inf") if free is None else free * _SHARE_OF_FREE


@contextmanager
def _set_tf32(torch: Any, allowed: bool, accelerator: Accelerator) -> Iterator[None]:
    """Products in TF32, or surely not; then as it was. torch has two names for it that exclude each other."""
    if accelerator.kind != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    name: str = "allow_tf32"
    try:
        before = matmul.allow_tf32
    except RuntimeError:
        name, before = "fp32_precision", matmul.fp32_precision
    value: object = allowed if name == "allow_tf32" else "tf32" if allowed else "ieee"
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def _cache_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "detscope" / "peak.json"


def _read_cache(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {key: entry for key, entry in found.items() if isinstance(entry, dict)}
    return {}


def _write_cache(path: Path, known: dict[str, Any]) -> None:
    with suppress(OSError):  # a cache that cannot be written is measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(known, indent=2), encoding="utf-8")
        temporary.replace(path)
