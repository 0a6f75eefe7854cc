"""Memory as others count it: the process (RSS), loader workers, what CUDA's allocator has reserved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from detscope.record.memory.live import Held

LARGEST_FREE = 5
_STATUS = {"VmRSS:": "process", "VmHWM:": "process_peak"}
Level = tuple[int, int, str, str, int]  # a row of `memory_levels`


def read_levels(step: int, workers: Iterable[int], device: str) -> list[Level]:
    """All levels of this moment."""
    time_ns = perf_counter_ns()
    found = [(level, size) for level, size in process_levels("self").items()]
    for worker in sorted(workers):
        resident = process_levels(str(worker)).get("process")
        if resident is not None:  # else it has ended
            found.append((f"worker {worker}", resident))
    rows: list[Level] = [(time_ns, step, "cpu", level, size) for level, size in found]
    if device.startswith("cuda"):
        rows += [(time_ns, step, device, level, size) for level, size in _cuda_levels(device)]
    return rows


def process_levels(pid: str) -> dict[str, int]:
    """Resident bytes of a process, now and at most; empty where they cannot be read."""
    levels = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, rest = line.partition("\t")
            if key in _STATUS:
                levels[_STATUS[key]] = int(rest.split()[0]) * 1024
    if not levels:
        levels = _by_psutil(pid)
    return levels


def _by_psutil(pid: str) -> dict[str, int]:
    """Where there is no /proc."""
    import psutil

    try:
        return {"process": psutil.Process(None if pid == "self" else int(pid)).memory_info().rss}
    except psutil.Error:
        return {}


def _cuda_levels(device: str) -> list[tuple[str, int]]:
    """Reserved by the caching allocator, and its largest free blocks."""
    import torch

    levels = [("reserved", torch.cuda.memory_reserved(device))]
    blocks = _blocks(device)
    free = sorted((block["size"] for block in blocks if block["state"] == "inactive"), reverse=True)
    return levels + [("largest_free", size) for size in free[:LARGEST_FREE]]


def _blocks(device: str) -> list[dict[str, Any]]:
    import torch

    index = torch.device(device).index
    wanted = torch.cuda.current_device() if index is None else index
    return [
        {"address": block.get("address"), **block}
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == wanted
        for block in segment["blocks"]
    ]


def block_sizes(device: str) -> Callable[[Held], int]:
    """How many bytes a tensor's block takes: on CUDA more than its storage, for sizes are rounded up."""
    if not device.startswith("cuda"):
        return lambda held: held.bytes
    sizes = {block["address"]: int(block["size"]) for block in _blocks(device)}
    return lambda held: (
        sizes.get(held.address, -(-held.bytes // 512) * 512) if held.device != "cpu" else held.bytes
    )
