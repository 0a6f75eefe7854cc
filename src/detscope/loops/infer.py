"""The inference loop: read and decode -> to device -> forward -> back to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detscope.loops.train import AUTOCAST
from detscope.marks import phase

Batch = tuple[list[torch.Tensor], list[int]]  # images and their numbers


@dataclass(frozen=True)
class InferPlan:
    """Where and in which arithmetic."""

    device: str = "cpu"
    precision: str = "fp32"


@dataclass
class InferHooks:
    """Where others may listen; by default nobody does."""

    each_batch: Callable[[Iterable[Batch]], Iterator[Batch]] = iter
    on_output: Callable[[Batch, Any], None] = lambda _batch, _output: None


def infer_batches(
    model: nn.Module, batches: Iterable[Batch], plan: InferPlan, hooks: InferHooks | None = None
) -> None:
    """Pass every batch through the model in evaluation mode."""
    hooks = hooks or InferHooks()
    model.eval()
    for batch in hooks.each_batch(batches):
        hooks.on_output(batch, detect_objects(model, batch[0], plan))


def detect_objects(model: nn.Module, images: list[torch.Tensor], plan: InferPlan) -> Any:
    """One forward pass; on a device it ends when the detections have arrived on the host."""
    with torch.inference_mode():
        return run_forward(model, images, plan)


def run_forward(
    model: nn.Module,
    images: list[torch.Tensor],
    plan: InferPlan,
    on_device: Callable[[Any], Any] = lambda output: output,
) -> Any:
    """To the device, through the model and back; `on_device` may make the output smaller before that."""
    if plan.device != "cpu":
        with phase("transfer"):
            images = [image.to(plan.device, non_blocking=True) for image in images]
    if plan.precision == "fp32":
        output = model(images)
    else:
        with torch.autocast(plan.device.split(":")[0], dtype=AUTOCAST[plan.precision]):
            output = model(images)
    output = on_device(output)
    if plan.device != "cpu":
        with phase("transfer"):
            output = to_host(output)
    return output


def to_host(output: Any) -> Any:
    """Tensors in nested lists, tuples and dicts, copied to the host; everything else as it is."""
    if isinstance(output, torch.Tensor):
        return output.cpu()
    if isinstance(output, dict):
        return {key: to_host(value) for key, value in output.items()}
    if isinstance(output, (list, tuple)):
        return [to_host(value) for value in output]
    return output
