"""Fitting device models and scoring them, from files of measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from detscope.errors import InputError, UsageError
from detscope.predict.device_model import STAGES, DeviceModel, fit_device
from detscope.predict.fits import with_outcome
from detscope.predict.graph import LayerGraph
from detscope.predict.methods import METHODS, TARGETS
from detscope.predict.model_file import save_model
from detscope.predict.protocols import PROTOCOLS
from detscope.predict.recorded import read_layers
from detscope.predict.samples import Sample, read_samples
from detscope.predict.score import noise_floor, score, score_decisions

LAYERS = "layers.json"


def read_measured(files: Sequence[Path]) -> list[Sample]:
    """Samples of CSVs; the layers of their networks lie beside them in `layers.json`."""
    samples: list[Sample] = []
    graphs: dict[Path, dict[tuple[str, int], LayerGraph]] = {}
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} is not there", "give a CSV of measured steps")
        layers = file.parent / LAYERS
        if not layers.is_file():
            raise InputError(f"no {LAYERS} beside {file}", "put the networks' lists of layers there")
        if layers not in graphs:
            graphs[layers] = read_layers(layers)
        samples += read_samples(file, graphs[layers])
    return samples


def chosen(text: str, known: Sequence[str], flag: str) -> list[str]:
    """The comma-separated values of a flag, each of them known."""
    values = [value.strip() for value in text.split(",") if value.strip()]
    for value in values or [text]:
        if value not in known:
            raise UsageError(f"{flag}: no {value!r}", f"there are: {', '.join(known)}")
    return list(dict.fromkeys(values))


def run_fit(files: Sequence[Path], out: Path, target: str, stage: str, method: str) -> dict[str, Any]:
    """Fit, write, and tell what was fitted and how wrong it was on what it had not seen."""
    targets = chosen(target, list(TARGETS), "--target")
    (stage,) = chosen(stage, STAGES, "--stage")[:1]
    (method,) = chosen(method, METHODS, "--method")[:1]
    model = fit_device(read_measured(files), targets, stage=stage, method=method)
    save_model(model, out)
    return describe(model, out)


def describe(model: DeviceModel, path: Path) -> dict[str, Any]:
    """A model in figures."""
    return {
        "model": str(path),
        "stage": model.stage,
        "rows": model.rows,
        "networks": list(model.networks),
        "fingerprint": model.fingerprint,
        "limit_bytes": model.limit_bytes,
        "targets": {
            name: {"near": target.near_name, "far": target.far_name, "left_out_errors": target.errors}
            for name, target in model.targets.items()
        },
    }


def run_score(files: Sequence[Path], target: str, stage: str, methods: str, protocols: str) -> dict[str, Any]:
    """Every method under every protocol; decisions where some runs ran out of memory."""
    samples = read_measured(files)
    (stage,) = chosen(stage, STAGES, "--stage")[:1]
    targets = chosen(target, list(TARGETS), "--target")
    scores = [
        asdict(score(samples, one, protocol, method, training=stage == "training"))
        for one in targets
        for protocol in chosen(protocols, list(PROTOCOLS), "--protocol")
        for method in chosen(methods, METHODS, "--method")
    ]
    ran_out = "memory" in targets and any(not one.passed for one in samples)
    return {
        "rows": len(samples),
        "noise_floor": {one: noise_floor(samples, one) for one in targets},
        "scores": scores,
        "decisions": asdict(score_decisions(samples, with_outcome(samples))) if ran_out else None,
    }
