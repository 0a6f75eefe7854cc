"""`detscope predict RUN`: a run's own network as if it had never run, beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.analyze.memory.account import memory_figures
from detscope.analyze.predicted import FILE_NAME, VERSION, categories_beside, compared
from detscope.errors import InputError, UsageError
from detscope.predict.garbage import skip_full_collections
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run, load_run
from detscope.sessions.fit.rows import MeasuredRow, row_of_run
from detscope.sessions.predict.prediction import (
    OPTIMIZERS,
    PredictRequest,
    limit_of,
    load_named,
    open_model,
    traced_answer,
)

if TYPE_CHECKING:
    from detscope.zoo.networks import Network


@skip_full_collections()
def predict_run(request: PredictRequest, folder: Path) -> dict[str, Any]:
    """Predict a run's step, compare, and keep the answer in the run as predicted.json."""
    _refuse_other_settings(request)
    run = load_run(folder)
    row = row_of_run(folder)
    if isinstance(row, str):
        raise InputError(
            f"{folder.name} cannot be predicted: {row}", "detscope predict NETWORK takes any name"
        )
    limit = limit_of(request.memory_limit)
    device = open_model(request.device_model, row.stage)
    from detscope.predict.trace.network import keep_gradients, trace_network

    training = row.stage == "training"
    network = _own_network(run, row)
    traced = trace_network(network, training=training)
    traced = keep_gradients(traced) if training else traced
    optimizer, differs = _optimizer(row)
    found = traced_answer(traced, [row.batch], device, limit, optimizer)
    if device is not None:
        found["device_model"]["file"] = str(request.device_model)
    found["notes"] += [*differs, *_differences(run, network.parameters, row)]
    found["rows"][0]["assumed"].append(_images_words(network))
    found |= {"run": str(folder), **_beside(found, row, memory_figures(run))}
    path = folder / FILE_NAME
    kept = {"version": VERSION, "made_at": datetime.now(UTC).isoformat(timespec="seconds"), **found}
    write_text(path, json.dumps(kept, indent=1, allow_nan=False) + "\n")
    return found | {"kept": str(path)}


def _images_words(network: Network) -> str:
    width, height = (getattr(network, side, None) for side in ("width", "height"))
    if width and height:
        return f"images: random, {width} x {height} pixels as the run's"
    return "images: random and square, with as many pixels as the network worked on in the run"


def _own_network(run: Run, row: MeasuredRow) -> Network:
    """The run's network with as many classes as its data had, fed with images like the run's.

    Where images differed in size they are square, with as many pixels as the network worked on.
    """
    from detscope.sessions.predict.runs import fed, size_of_images

    size = size_of_images(run)
    asked = ((run.info.get("settings") or {}).get("model") or {}).get("image_size")
    image_size = row.image_size if size is None else asked
    network = _with_classes(load_named(row.network, image_size), run.info, image_size)
    return fed(network, size) if size is not None and network.kind == "detector" else network


def _with_classes(network: Network, info: Mapping[str, Any], image_size: int | None) -> Network:
    classes = (info.get("data") or {}).get("classes")
    recorded = (info.get("model") or {}).get("parameters")
    if network.kind != "detector" or not isinstance(classes, int) or recorded == network.parameters:
        return network
    from detscope.zoo.contract import BuildOptions
    from detscope.zoo.networks.loading import count_parameters
    from detscope.zoo.registry import build_model

    options = BuildOptions(num_classes=classes + 1, weights="none", image_size=image_size)
    module = build_model(network.base.name, options).module
    return replace(network, module=module, num_classes=classes + 1, parameters=count_parameters(module))


def _refuse_other_settings(request: PredictRequest) -> None:
    given = {
        "--batch-sizes": request.batch_sizes,
        "--image-size": request.image_size,
        "--stage": request.stage,
        "--optimizer": request.optimizer,
    }
    for flag, value in given.items():
        if value is not None:
            raise UsageError(
                f"{flag}: a run is predicted as it was", f"leave {flag} out, or name the network"
            )


def _optimizer(row: MeasuredRow) -> tuple[str | None, list[str]]:
    """The optimizer whose memory is simulated; AdamW keeps what Adam keeps."""
    name = row.conditions.get("optimizer", "sgd").removesuffix("w")
    if row.stage != "training":
        return None, []
    if name in OPTIMIZERS:
        return name, []
    return OPTIMIZERS[0], [f"the run's optimizer {name} is not known: memory as with {OPTIMIZERS[0]}"]


def _differences(run: Run, parameters: int, row: MeasuredRow) -> list[str]:
    """What the run did otherwise than what is predicted."""
    notes = []
    recorded = (run.info.get("model") or {}).get("parameters")
    if isinstance(recorded, int) and recorded != parameters:
        notes.append(
            f"the run's model had {recorded:,} parameters, the one that was built again has {parameters:,}"
        )
    if row.stage == "training" and str((run.info.get("weights") or {}).get("kind")) != "random":
        notes.append("layers that its weights left frozen in the run are predicted as trained")
    for name, usual in (("precision", "fp32"), ("channels_last", "no")):
        value = row.conditions.get(name, usual)
        if value != usual:
            notes.append(f"the run used {name} {value}; predicted is {usual}")
    return notes


def _beside(found: Mapping[str, Any], row: MeasuredRow, memory: Mapping[str, Any] | None) -> dict[str, Any]:
    asked = found["rows"][0]
    ends = asked.get("latency_ms_interval")
    low, high = row.latency_low_ms, row.latency_high_ms
    step = compared(
        "step without waiting for data",
        "ms",
        asked["latency_ms"],
        row.latency_ms,
        interval=tuple(ends) if ends else None,
        measured_interval=(low, high) if low is not None and high is not None else None,
        why="" if asked["latency_ms"] is not None else "no device model: --device-model FILE",
    )
    on_cpu = str(row.conditions.get("device")) == "cpu"
    simulated = asked["cpu_allocated_bytes" if on_cpu else "allocated_bytes"]
    measured = memory.get("peak_bytes") if memory else None
    peak = compared(
        "peak of allocated memory",
        "bytes",
        simulated,
        measured,
        why="" if measured is not None else "the run did not record memory: --memory",
    )
    parts = asked["cpu_categories" if on_cpu else "categories"]
    categories = memory.get("categories") if memory else None
    return {
        "compared": [step, peak],
        "categories": categories_beside(parts, categories) if categories else [],
    }
