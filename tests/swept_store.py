"""A sweep's store with made-up results."""

from __future__ import annotations

from pathlib import Path

from detscope.sweep.keys import make_key
from detscope.sweep.outcome import Outcome
from detscope.sweep.store import SweepStore

NETWORKS = ("networks/resnet18-p0", "networks/resnet18-p50", "tiny_ssd")


def make_store(path: Path, label: str = "") -> Path:
    """Three networks at four batch sizes; one ran out of memory, one point is unsteady."""
    with SweepStore(path, create=True) as store:
        facts = {"packages": {"torch": f"2.15{label}"}, "processor": "a processor"}
        environment = store.keep_environment(facts)
        planned = []
        for place, network in enumerate(NETWORKS):
            for batch in (1, 2, 4, 8):
                name = f"{network}{label}"
                key = make_key([name, batch])
                planned.append((key, f"{name} batch {batch}", "cpu"))
                if place == 2 and batch == 4:
                    continue  # still to run
                identity = {
                    "trial": key,
                    "configuration": key,
                    "device": "cpu",
                    "environment": environment,
                    "repetition": 0,
                    "network": name,
                    "stage": "training",
                    "batch_size": batch,
                    "precision": "fp32",
                    "variables": "memory+latency",
                    "fingerprint": f"name:{name}",
                }
                store.record_attempt(identity, outcome(place, batch, label))
        store.keep_plan(f"nightly{label}", "", {}, planned)
    return path


def outcome(place: int, batch: int, label: str) -> Outcome:
    if place == 2 and batch == 8:
        return Outcome("oom_host", "", f"no memory for 17 bytes{label}", seconds=1.0)
    ms = 10.0 * (place + 1) * batch
    result = {
        "step_ms": ms,
        "step_low_ms": 0.95 * ms,
        "step_high_ms": 1.06 * ms,
        "images_per_s": batch / ms * 1e3,
        "interval_width": 0.11,
        "interval_reached": int(not (place == 1 and batch == 2)),
        "stopped_by": "time",
        "stability": "stable",
        "allocated_bytes": 10**8 * (place + batch),
        "process_bytes": 5 * 10**8,
        "parameters": 10**6 * (3 - place),
    }
    return Outcome("ok", seconds=2.0, result=result)
