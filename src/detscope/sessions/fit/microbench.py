"""Measuring a device by single layers, and keeping what was measured beside its environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detscope.errors import UsageError
from detscope.machine.devices import resolve_device
from detscope.machine.facts import environment
from detscope.predict.layers.times import LayerTime, write_layer_times
from detscope.predict.microbench.run import Microbench, measure_layers
from detscope.runs.atomic import write_text

SECONDS = 180.0
_FACTS = ".environment.json"  # beside microbench.csv: microbench.environment.json


def run_microbench(
    device: str,
    seconds: float,
    out_csv: Path | None,
    progress: Callable[[float, str], None] | None = None,
    *,
    threads: int | None = None,
) -> list[LayerTime]:
    """Measure layers for so many seconds; rows and their environment are kept where `out_csv` says.

    `progress` is told the share that is done and how much was measured. `threads` are torch's (None: as is).
    """
    if not seconds > 0:
        raise UsageError(f"--microbench-seconds {seconds:g}: no time to measure in", "180 is usual")
    if threads is not None and threads < 1:
        raise UsageError(f"{threads} threads", "1 or more")
    place = resolve_device(device)
    with _threads(threads) as used:
        found = measure_layers(place, seconds, progress=progress)
    if not found.rows:
        raise UsageError(f"--microbench-seconds {seconds:g}: not one layer was measured", "180 is usual")
    if out_csv is not None:
        out_csv.parent.mkdir(parents=True, exist_ok=True)
        write_layer_times(out_csv, found.rows)
        write_text(out_csv.with_suffix(_FACTS), json.dumps(facts(found, place, used), indent=1) + "\n")
    return list(found.rows)


def facts(found: Microbench, device: str, threads: int) -> dict[str, Any]:
    """What the rows depend on, and how much the machine's speed drifted meanwhile."""
    drift = found.drift
    return {
        "device": device,
        "torch_threads": threads,
        "seconds": round(found.seconds, 1),
        "rows": len(found.rows),
        "finished_rounds": found.rounds,
        "reference_convolution_ms": [round(value, 4) for value in drift.compute_ms],
        "reference_addition_ms": [round(value, 4) for value in drift.move_ms],
        "slowest_reference_over_fastest": round(drift.largest_ratio, 3),
        "environment": environment(),
    }


@contextmanager
def _threads(wanted: int | None) -> Iterator[int]:
    import torch

    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
