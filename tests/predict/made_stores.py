"""Stores of sweeps that never ran, with layers beside them, so that no torch is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_networks import chain

from detscope.machine.facts import package_version
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.layers.lists import ListedNetwork, write_networks
from detscope.sessions.fit import networks as fit_networks
from detscope.sweep.outcome import Outcome
from detscope.sweep.store import SweepStore

FACTS = {"processor": "a processor", "cores": 2, "gpus": [], "packages": {"torch": "2.15.0"}}
WIDTHS = {"one": 32, "two": 48}
LEVELS = (0, 10, 30, 50, 70)
BATCHES = (2, 8, 16)


def identity(network: str, batch: int, **other: Any) -> dict[str, Any]:
    values = {
        "device": "cpu",
        "repetition": 0,
        "network": network,
        "stage": "training",
        "batch_size": batch,
        "image_size": 32,
        "precision": "fp32",
        "threads": 1,
        "optimizer": "sgd",
        "num_workers": 0,
        "channels_last": 0,
        "variables": "memory+latency",
        "fingerprint": f"name:{network}",
    } | other
    key = repr(sorted(values.items()))
    return {"trial": key, "configuration": key} | values


def result(channels: int, batch: int, **other: Any) -> dict[str, Any]:
    middle = 2 + channels * batch / 10
    return {
        "step_ms": middle,
        "step_low_ms": 0.98 * middle,
        "step_high_ms": 1.02 * middle,
        "allocated_bytes": 10_000 * channels * batch,
        "process_bytes": 700_000_000 + 12_000 * channels * batch,
        "torch_threads": 1,
    } | other


def keep(path: Path, rows: list[tuple[dict[str, Any], Outcome]], facts: dict[str, Any] = FACTS) -> Path:
    with SweepStore(path, create=True) as store:
        environment = store.keep_environment(facts)
        for row, outcome in rows:
            store.record_attempt(row | {"environment": environment}, outcome)
    return path


def listed(folder: Path, size: int = 32, stage: str = "training") -> None:
    """Layers as a first fit keeps them, so that tests need no torch."""
    found = []
    for name, width in WIDTHS.items():
        for level in LEVELS:
            graph = chain(round(width * (1 - level / 100)), name=f"{name}-{level}")
            details = dict(
                zip(
                    fit_networks._DETAILS,
                    (
                        f"{name}-{level}",
                        f"name:{name}-{level}",
                        str(size),
                        stage,
                        str(package_version("detscope")),
                    ),
                    strict=True,
                )
            )
            found.append(
                ListedNetwork(
                    name, level, LayerGraph(graph.name, graph.operations, family=name, details=details)
                )
            )
    write_networks(folder / "layers.json", found)


def rows_of(**other: Any) -> list[tuple[dict[str, Any], Outcome]]:
    return [
        (
            identity(f"{name}-{level}", batch, **other),
            Outcome("ok", result=result(round(width * (1 - level / 100)), batch)),
        )
        for name, width in WIDTHS.items()
        for level in LEVELS
        for batch in BATCHES
    ]
