"""What the verb `predict` does: find the network, the device's model and the batch sizes, and ask."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.analyze.sweep.batch_search import MOST, largest_batch
from detscope.errors import InputError, UsageError
from detscope.machine.device_memory import CONTEXT_BYTES, count_cublas_workspace
from detscope.machine.limits import parse_size
from detscope.predict.answer import answer_questions, share_by_stage, simulate_row
from detscope.predict.device.file import load_model
from detscope.predict.device.model import DeviceModel
from detscope.predict.garbage import skip_full_collections
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.layers.lists import read_layers
from detscope.predict.memory.lifetimes import ASSUMED as ASSUMED_FORWARD
from detscope.predict.memory.lifetimes import simulate_inference
from detscope.predict.memory.model import DOES_NOT_FIT, FITS
from detscope.predict.models.older import group_features
from detscope.predict.samples import StepCase
from detscope.runs.folder import find_run, runs_named

if TYPE_CHECKING:
    from detscope.predict.trace.network import TracedNetwork
    from detscope.zoo.networks import Network

OPTIMIZERS = ("sgd", "adam")
STAGES = ("training", "inference")
USUAL_BATCHES = "1,2,4,8,16,32,64,128"
_RUN_FILE = "run.json"
_PART_OF_RUN = re.compile(r"[0-9a-f]{4}|\d{8}T.*")  # its id, or the time that its name begins with
_LIST_OF_LAYERS = re.compile(r"\.json:[^:]+$")


_UNKNOWN: dict[str, Any] = {"process_bytes": None, "latency_ms": None, "extrapolated": None}


@dataclass(frozen=True)
class PredictRequest:
    """What the user asked for; None: as is usual, or as the run was, where a run is predicted."""

    network: str
    device_model: Path | None = None
    batch_sizes: str | None = None
    memory_limit: str | None = None
    image_size: int | None = None
    stage: str | None = None
    optimizer: str | None = None


@dataclass(frozen=True)
class PredictionInput:
    """A network that is known layer by layer, and everything else that an answer depends on."""

    graph: LayerGraph
    batches: list[int]
    device: DeviceModel | None
    limit_bytes: float | None
    simulate: Callable[[StepCase], dict[str, Any]]
    reserved: Callable[[int], int]  # bytes by the allocator's model, for batches that are searched
    optimizer: str = "sgd"


def find_named_run(text: str, parent: Path = Path("runs")) -> Path | None:
    """The run that a network's argument names: `latest`, its folder, name or id; None: no run."""
    if text == "latest" or any((place / _RUN_FILE).is_file() for place in (Path(text), parent / text)):
        return find_run(text, parent)
    # a model's name must not be taken for the beginning of a run that somebody named after it
    return find_run(text, parent) if _PART_OF_RUN.fullmatch(text) and runs_named(text, parent) else None


@skip_full_collections()
def run_predict(request: PredictRequest) -> dict[str, Any]:
    """The answer for one network: by its layers where a list of layers is named, else traced."""
    stage, optimizer = request.stage or STAGES[0], request.optimizer or OPTIMIZERS[0]
    if stage not in STAGES:
        raise UsageError(f"--stage {stage}: no such stage", f"use {' or '.join(STAGES)}")
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer {optimizer}: unknown", f"use {' or '.join(OPTIMIZERS)}")
    batches = parse_batches(request.batch_sizes or USUAL_BATCHES)
    limit = parse_limit(request.memory_limit)
    device = open_device_model(request.device_model, stage)
    if _LIST_OF_LAYERS.search(request.network):
        found = _answer_listed(find_network(request.network), batches, device, limit, stage)
    else:
        wrong = [batch for batch in batches if batch < 1]
        if wrong:  # before seconds of tracing
            raise UsageError(f"a batch of {wrong[0]} images", "--batch-sizes 1,2,4,8")
        from detscope.predict.trace.network import trace_network

        network = load_unfilled(request.network, request.image_size)
        traced = trace_network(network, training=stage == "training")
        found = answer_traced(traced, batches, device, limit, optimizer if stage == "training" else None)
    if request.device_model is not None:
        found["device_model"]["file"] = str(request.device_model)
    return found


def open_device_model(path: Path | None, stage: str) -> DeviceModel | None:
    """A device's model, if it was fitted for this stage."""
    device = None if path is None else load_model(path)
    if device is not None and device.stage != stage:
        raise UsageError(
            f"{path} was fitted for {device.stage}, asked was {stage}",
            f"--stage {device.stage}, or fit one for {stage}",
        )
    return device


def _answer_listed(
    graph: LayerGraph, batches: list[int], device: DeviceModel | None, limit: float | None, stage: str
) -> dict[str, Any]:
    training = stage == "training"
    simulate = simulate_row if training else _forward_row

    def reserved_bytes(batch: int) -> int:
        found: int = simulate(StepCase(graph, batch))["reserved_bytes"]
        return found

    asked = PredictionInput(graph, batches, device, limit, simulate, reserved_bytes)
    found = _answer_all(asked)
    found |= {
        "stage": stage,
        "optimizer": "sgd" if training else None,
        "image_size": list(graph.input_shape[:-3:-1]),
    }
    return found


def _forward_row(case: StepCase) -> dict[str, Any]:
    peaks = simulate_inference(case.graph, case.batch)
    return {
        "batch": case.batch,
        "allocated_bytes": peaks.allocated,
        "reserved_bytes": peaks.reserved,
        "categories": peaks.categories,
        "assumed": [ASSUMED_FORWARD],
        **_UNKNOWN,
    }


def answer_traced(
    traced: TracedNetwork,
    batches: list[int],
    device: DeviceModel | None,
    limit: float | None,
    optimizer: str | None,
) -> dict[str, Any]:
    """All that is expected of a traced network; no optimizer: an inference."""

    def row_of(case: StepCase) -> dict[str, Any]:
        on_cpu = traced.find_cpu_peak(case.batch, optimizer)
        on_cuda = traced.find_cuda_peak(case.batch, optimizer)
        return {
            "batch": case.batch,
            "cpu_allocated_bytes": on_cpu.allocated_bytes,
            "cpu_categories": on_cpu.categories,
            "allocated_bytes": on_cuda.allocated,
            "reserved_bytes": on_cuda.reserved,
            "categories": on_cuda.categories,
            "assumed": list(traced.assumption_notes),
            **_UNKNOWN,
        }

    def reserved_bytes(batch: int) -> int:
        return traced.find_cuda_peak(batch, optimizer).reserved

    found = _answer_all(
        PredictionInput(
            traced.layer_graph, batches, device, limit, row_of, reserved_bytes, optimizer or "sgd"
        )
    )
    found |= {
        "stage": "training" if traced.training else "inference",
        "optimizer": optimizer,
        "image_size": list(traced.layer_graph.input_shape[:-3:-1]),
        "measured": list(traced.measurement_notes),
        "memory_by_stage": traced.sum_activations(found["places_at_batch"]),
    }
    return found


def _answer_all(asked: PredictionInput) -> dict[str, Any]:
    """What `answer` says, the exact borders of what fits, and what lies beyond what was measured."""
    device = asked.device
    found = answer_questions(
        asked.graph, asked.batches, device, asked.limit_bytes, asked.simulate, asked.optimizer
    )
    if device is None or "memory" not in device.targets:  # else it was measured what a process holds besides
        _add_beside(found["rows"])
    for row in found["rows"]:
        row["images_per_s"] = row["batch"] / row["latency_ms"] * 1e3 if row["latency_ms"] else None
        row["needed_bytes"] = None  # what the process would hold if the device were large enough
        if row["process_bytes"] is not None:
            row["needed_bytes"] = needed = row.get("process_bytes_unbounded") or row["process_bytes"]
            ends = row["process_bytes_interval"]
            row["needed_bytes_interval"] = [needed / row["process_bytes"] * end for end in ends]
    found |= _find_borders(asked, found)
    found |= {"outside": {}, "latency_by_stage": None, "device_model": None}
    # where time and memory are is told of the batch one would use
    found["places_at_batch"] = found["best_batch_for_throughput"] or max(asked.batches)
    if device is None:
        return found
    found["device_model"] = {
        "fingerprint": device.fingerprint,
        "rows": device.rows,
        "networks": list(device.networks),
        "methods": {name: [one.near_name, one.far_name] for name, one in device.targets.items()},
    }
    for target, model in device.targets.items():
        beyond = {
            number
            for batch in asked.batches
            for number in model.reach.find_outside(StepCase(asked.graph, batch))
        }
        found["outside"][target] = group_features(beyond)
    if "latency" in device.targets:
        told = StepCase(asked.graph, found["places_at_batch"], asked.optimizer)
        found["latency_by_stage"] = share_by_stage(device.targets["latency"], told)
    return found


def _add_beside(rows: list[dict[str, Any]]) -> None:
    """What a process holds on a CUDA device besides what its network reserves, part by part."""
    context, workspace = CONTEXT_BYTES, count_cublas_workspace()
    for row in rows:
        row["beside"] = {"driver context": context, "cuBLAS workspace": workspace}
        row["device_bytes"] = row["reserved_bytes"] + context + workspace
        row["assumed"] += [
            f"cuda: a driver context of {context / 1e6:.0f} MB beside it (0.2 to 0.8 GB by device, driver)",
            f"cuda: a cuBLAS workspace of {workspace / 1e6:.1f} MB beside it (33.6 MB on Hopper and newer)",
        ]


def _find_borders(asked: PredictionInput, found: dict[str, Any]) -> dict[str, Any]:
    """The largest batch that fits and the smallest that does not, searched between those asked for."""
    limit, memory = found["limit_bytes"], asked.device and asked.device.targets.get("memory")
    if limit is None or not math.isfinite(limit):
        return {"largest_batch_that_fits": None, "smallest_batch_that_does_not_fit": None}
    lean = asked.device and replace(asked.device, targets={"memory": memory} if memory else {})

    def simulate_memory(case: StepCase) -> dict[str, Any]:
        reserved = 0 if memory else asked.reserved(case.batch)  # with samples the process decides
        return {"batch": case.batch, "reserved_bytes": reserved, **_UNKNOWN}

    @cache
    def decide_batch(batch: int) -> str:
        said: str = answer_questions(asked.graph, [batch], lean, limit, simulate_memory)["rows"][0]["fits"]
        return said

    words = {row["batch"]: row["fits"] for row in found["rows"]}
    fits = {batch: said == FITS for batch, said in words.items()}
    not_out = {batch: said != DOES_NOT_FIT for batch, said in words.items()}
    last = largest_batch(lambda batch: decide_batch(batch) != DOES_NOT_FIT, not_out)
    return {
        "largest_batch_that_fits": largest_batch(lambda batch: decide_batch(batch) == FITS, fits)
        if memory
        else None,
        "smallest_batch_that_does_not_fit": None if last == MOST else (last or 0) + 1,
    }


def load_unfilled(text: str, image_size: int | None) -> Network:
    """Build a network without filling its weights: no value of them is asked for."""
    from detscope.zoo.networks import leave_weights_unfilled, load_network

    # a model of one's own may look at its weights while it is built
    with nullcontext() if ":" in text else leave_weights_unfilled():
        return load_network(text, image_size=image_size)


def find_network(text: str) -> LayerGraph:
    """FILE.json:NAME, where NAME is a network and its level: resnet18_0."""
    file, _, name = text.rpartition(":")
    if not file:
        raise UsageError(f"{text!r} names no list of layers", "FILE.json:NAME, as layers.json:resnet18_0")
    graphs = {graph.name: graph for graph in read_layers(Path(file)).values()}
    if name not in graphs:
        near = get_close_matches(name, graphs, 1)
        raise InputError(
            f"{file} has no network {name!r}", f"did you mean {near[0]}?" if near else "look into the file"
        )
    return graphs[name]


def parse_batches(text: str) -> list[int]:
    """1,2,4: whole numbers; `answer` refuses those below 1."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--batch-sizes: {text!r} is no list of whole numbers", "1,2,4,8") from error


def parse_limit(text: str | None) -> float | None:
    """Bytes of --memory-limit; None where it was not given."""
    size = parse_size(text)
    if text is not None and size is None:
        raise UsageError(f"--memory-limit: {text!r} is no size", "8GiB, 512MiB")
    return size
