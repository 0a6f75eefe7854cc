"""`detscope predict RUN`: a run's own network as if it had never run, beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from detscope.analyze.memory.account import memory_account
from detscope.analyze.memory.figures import MemoryAccount
from detscope.analyze.prediction import FILE_NAME, VERSION, compare_categories, compare_figure
from detscope.errors import InputError, UsageError
from detscope.predict.garbage import skip_full_collections
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run, load_run
from detscope.sessions.fit.rows import MeasuredRow, row_of_run
from detscope.sessions.predict.prediction import (
    OPTIMIZERS,
    PredictRequest,
    answer_traced,
    load_unfilled,
    open_device_model,
    parse_limit,
)
from detscope.zoo.networks import Batch, Network

if TYPE_CHECKING:
    from torch import Tensor


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
    limit = parse_limit(request.memory_limit)
    device = open_device_model(request.device_model, row.stage)
    from detscope.predict.trace.network import keep_gradients, trace_network

    training = row.stage == "training"
    network = _build_own_network(run, row)
    traced = trace_network(network, training=training)
    traced = keep_gradients(traced) if training else traced
    optimizer, differs = _choose_optimizer(row)
    found = answer_traced(traced, [row.batch], device, limit, optimizer)
    if device is not None:
        found["device_model"]["file"] = str(request.device_model)
    found["notes"] += [*differs, *_list_differences(run, network.parameters, row)]
    size = " x ".join(str(getattr(network, side, 0)) for side in ("width", "height"))
    as_run = isinstance(network, FedNetwork)
    found["rows"][0]["assumed"].append(
        f"images: random, {size} pixels as the run's"
        if as_run
        else "images: random and square, with as many pixels as the network worked on in the run"
    )
    found |= {"run": str(folder), **_compare_measured(found, row, memory_account(run))}
    path = folder / FILE_NAME
    kept = {"version": VERSION, "made_at": datetime.now(UTC).isoformat(timespec="seconds"), **found}
    write_text(path, json.dumps(kept, indent=1, allow_nan=False) + "\n")
    return found | {"kept": str(path)}


def _build_own_network(run: Run, row: MeasuredRow) -> Network:
    """The run's network with as many classes as its data had, fed with images like the run's.

    Where images differed in size they are square, with as many pixels as the network worked on.
    """
    size = find_image_size(run)
    asked = ((run.info.get("settings") or {}).get("model") or {}).get("image_size")
    image_size = row.image_size if size is None else asked
    network = _set_classes(load_unfilled(row.network, image_size), run.info, image_size)
    return feed_images(network, size) if size is not None and network.kind == "detector" else network


def _set_classes(network: Network, info: Mapping[str, Any], image_size: int | None) -> Network:
    classes = (info.get("data") or {}).get("classes")
    recorded = (info.get("model") or {}).get("parameters")
    if network.kind != "detector" or not isinstance(classes, int) or recorded == network.parameters:
        return network
    from detscope.zoo.contract import BuildOptions
    from detscope.zoo.registry import build_model
    from detscope.zoo.structure import count_parameters

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


def _choose_optimizer(row: MeasuredRow) -> tuple[str | None, list[str]]:
    """The optimizer whose memory is simulated; AdamW keeps what Adam keeps."""
    name = row.conditions.get("optimizer", "sgd").removesuffix("w")
    if row.stage != "training":
        return None, []
    if name in OPTIMIZERS:
        return name, []
    return OPTIMIZERS[0], [f"the run's optimizer {name} is not known: memory as with {OPTIMIZERS[0]}"]


def _list_differences(run: Run, parameters: int, row: MeasuredRow) -> list[str]:
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


def _compare_measured(
    found: Mapping[str, Any], row: MeasuredRow, memory: MemoryAccount | None
) -> dict[str, Any]:
    asked = found["rows"][0]
    ends = asked.get("latency_ms_interval")
    low, high = row.latency_low_ms, row.latency_high_ms
    step = compare_figure(
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
    measured = memory.peak_bytes if memory else None
    peak = compare_figure(
        "peak of allocated memory",
        "bytes",
        simulated,
        measured,
        why="" if measured is not None else "the run did not record memory: --memory",
    )
    parts = asked["cpu_categories" if on_cpu else "categories"]
    categories = {one.name: one.bytes for one in memory.categories} if memory else {}
    compared = compare_categories(parts, categories) if categories else []
    found_beside: dict[str, Any] = msgspec.to_builtins({"compared": [step, peak], "categories": compared})
    return found_beside


@dataclass(frozen=True)
class FedNetwork(Network):
    """A detector whose images are as wide and high as said, and not square."""

    width: int = 0
    height: int = 0

    def random_batch(self, batch_size: int, *, seed: int = 0, device: str = "cpu") -> Batch:
        """Square images and their boxes, cut to shape."""
        batch = super().random_batch(batch_size, seed=seed, device=device)
        images = [image[:, : self.height, : self.width].clone() for image in batch.inputs]
        return Batch(images, [self._cut_target(target) for target in batch.targets])

    def _cut_target(self, target: dict[str, Any]) -> dict[str, Any]:
        across, down = self.width / self.image_size, self.height / self.image_size
        found = dict(target)
        found["boxes"] = _scale_columns(target["boxes"], (across, down, across, down))
        if "masks" in target:
            found["masks"] = target["masks"][:, : self.height, : self.width].clone()
        if "keypoints" in target:
            found["keypoints"] = _scale_columns(target["keypoints"], (across, down, 1.0))
        return found


def _scale_columns(values: Tensor, factors: tuple[float, ...]) -> Tensor:
    return values * values.new_tensor(factors)


def feed_images(network: Network, size: tuple[int, int]) -> FedNetwork:
    """The same network, fed with images of (width, height)."""
    same = {field.name: getattr(network, field.name) for field in fields(network)}
    return FedNetwork(**(same | {"image_size": max(size)}), width=size[0], height=size[1])


def find_image_size(run: Run) -> tuple[int, int] | None:
    """Width and height of the run's images where all were alike; None where that is not known."""
    images = run.table("images").select("width", "height").drop_nulls().unique()
    if images.height == 1:
        width, height = images.row(0)
        return int(width), int(height)
    data = (run.info.get("settings") or {}).get("data") or {}
    width, height = data.get("image_width"), data.get("image_height")
    pixels = run.table("content").filter(pl.col("images") > 0).select(pl.col("pixels") / pl.col("images"))
    whole = set(pixels.to_series().drop_nulls().to_list())
    if data.get("scales") or not isinstance(width, int) or not isinstance(height, int):
        return None
    return (width, height) if whole == {float(width * height)} else None
