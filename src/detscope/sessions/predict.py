"""What the verb `predict` does: find the network, the device's model and the batch sizes, and ask."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.errors import InputError, UsageError
from detscope.predict.answer import answer
from detscope.predict.device_model import DeviceModel
from detscope.predict.expected import stage_shares
from detscope.predict.feature_names import feature_groups
from detscope.predict.graph import LayerGraph
from detscope.predict.model_file import load_model
from detscope.predict.recorded import read_layers
from detscope.predict.samples import Case

if TYPE_CHECKING:
    from detscope.predict.trace_memory import TracedNetwork

OPTIMIZERS = ("sgd", "adam")
_LIST_OF_LAYERS = re.compile(r"\.json:[^:]+$")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|KB|MB|GB)?", re.IGNORECASE)
_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


STAGES = ("training", "inference")


@dataclass(frozen=True)
class PredictRequest:
    """What the user asked for."""

    network: str
    device_model: Path | None = None
    batch_sizes: str = "1,2,4,8,16,32"
    memory_limit: str | None = None
    image_size: int | None = None
    stage: str = "training"
    optimizer: str = "sgd"


def run_predict(request: PredictRequest) -> dict[str, Any]:
    """The answer for one network: by its layers where a list of layers is named, else traced."""
    if request.stage not in STAGES:
        raise UsageError(f"--stage {request.stage}: no such stage", f"use {' or '.join(STAGES)}")
    if request.optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer {request.optimizer}: unknown", f"use {' or '.join(OPTIMIZERS)}")
    batches = parse_batches(request.batch_sizes)
    limit = None if request.memory_limit is None else parse_size(request.memory_limit)
    device = None if request.device_model is None else load_model(request.device_model)
    if device is not None and device.stage != request.stage:
        raise UsageError(
            f"{request.device_model} was fitted for {device.stage}, asked was {request.stage}",
            f"--stage {device.stage}, or fit one for {request.stage}",
        )
    if _LIST_OF_LAYERS.search(request.network):
        if request.stage != "training":
            raise UsageError("a list of layers is simulated for training", "leave --stage out")
        return answer(find_network(request.network), batches, device, limit)
    return _traced_answer(request, batches, device, limit)


def _traced_answer(
    request: PredictRequest, batches: list[int], device: DeviceModel | None, limit: float | None
) -> dict[str, Any]:
    traced = _trace(request, batches)
    optimizer = request.optimizer if request.stage == "training" else None

    def row_of(case: Case) -> dict[str, Any]:
        return _row(traced, case.batch, optimizer)

    found = answer(traced.graph, batches, device, limit, row_of)
    found |= {"stage": request.stage, "optimizer": optimizer, "measured": list(traced.measured)}
    kinds = traced.graph.unknown_kinds
    if kinds and device is not None:
        found["notes"].append(
            f"operations without a rule, counted by their memory traffic: {', '.join(kinds)}"
        )
    largest = Case(traced.graph, max(batches))
    found["memory_by_stage"] = traced.activations_by_stage(largest.batch)
    found["outside"], found["latency_by_stage"] = {}, None
    if device is not None:
        for target, model in device.targets.items():
            beyond = {
                number for batch in batches for number in model.reach.outside(Case(traced.graph, batch))
            }
            found["outside"][target] = feature_groups(beyond)
        if "latency" in device.targets:
            found["latency_by_stage"] = stage_shares(device.targets["latency"], largest)
    return found


def _trace(request: PredictRequest, batches: list[int]) -> TracedNetwork:
    wrong = [batch for batch in batches if batch < 1]
    if wrong:  # before seconds of tracing
        raise UsageError(f"a batch of {wrong[0]} images", "--batch-sizes 1,2,4,8")
    from detscope.predict.trace_memory import trace_network
    from detscope.zoo.networks import load_network
    from detscope.zoo.networks.unfilled import weights_left_unfilled

    # a model of one's own may look at its weights while it is built
    with nullcontext() if ":" in request.network else weights_left_unfilled():
        network = load_network(request.network, image_size=request.image_size)
    return trace_network(network, training=request.stage == "training")


def _row(traced: TracedNetwork, batch: int, optimizer: str | None) -> dict[str, Any]:
    on_cpu, on_cuda = traced.cpu_peak(batch, optimizer), traced.cuda_peak(batch, optimizer)
    return {
        "batch": batch,
        "cpu_allocated_bytes": on_cpu.allocated_bytes,
        "cpu_categories": on_cpu.categories,
        "allocated_bytes": on_cuda.allocated,
        "reserved_bytes": on_cuda.reserved,
        "categories": on_cuda.categories,
        "assumed": list(traced.assumed),
        "process_bytes": None,
        "latency_ms": None,
        "extrapolated": None,
    }


def find_network(text: str) -> LayerGraph:
    """FILE.json:NAME, where NAME is a network and its level: resnet18_0."""
    file, _, name = text.rpartition(":")
    if not file:
        raise UsageError(f"{text!r} names no list of layers", "FILE.json:NAME, as layers.json:resnet18_0")
    graphs = {graph.name: graph for graph in read_layers(Path(file)).values()}
    if name not in graphs:
        near = get_close_matches(name, graphs, 1)
        raise InputError(f"{file} has no network {name!r}", f"did you mean {near[0]}?" if near else "")
    return graphs[name]


def parse_batches(text: str) -> list[int]:
    """1,2,4: whole numbers; `answer` refuses those below 1."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--batch-sizes: {text!r} is no list of whole numbers", "1,2,4,8") from error


def parse_size(text: str) -> float:
    """Bytes of 8GiB, 512MiB or a plain number."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--memory-limit: {text!r} is no size", "8GiB, 512MiB")
    return float(match[1]) * _UNITS[(match[2] or "B").lower()]
