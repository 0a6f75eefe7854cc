"""The evaluation loop: every image of a loader through a detector, its detections kept as arrays.

The model comes back as it was: modes of all modules, random states, gradients. Scoring is not done here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from detscope.errors import OwnCodeError
from detscope.loops.infer import InferPlan, run_forward
from detscope.loops.train import Batch
from detscope.machine.accelerator import find_accelerator
from detscope.zoo.outputs import DETECTIONS, find_forward, is_detection

RunLengths = dict[str, Any]  # COCO's compressed form: {"size": [height, width], "counts": bytes}

MASK_THRESHOLD = 0.5


@dataclass(frozen=True)
class ImageDetections:
    """What a detector found in one image, in the pixels of that image."""

    image_id: int
    width: int
    height: int
    boxes: npt.NDArray[np.float64]  # [N, 4] x1, y1, x2, y2
    scores: npt.NDArray[np.float64]  # [N]
    labels: npt.NDArray[np.int64]  # [N], the model's own
    masks: tuple[RunLengths, ...] | None = None  # None: the model gives none
    keypoints: npt.NDArray[np.float64] | None = None  # [N, K, 3]
    not_finite: int = 0  # detections left out because a coordinate or score is not a number


@dataclass
class ModelDetections:
    """Detections of all images, in the loader's order, and how long they took."""

    images: list[ImageDetections] = field(default_factory=list)
    wall_ns: int = 0  # from asking for the first batch to holding the last detections, loading included
    forward_ns: int = 0  # of it in the model: transfer, forward and back to the host


def evaluate_model(
    model: nn.Module,
    loader: Iterable[Batch],
    device: str,
    *,
    precision: str = "fp32",
    each_batch: Callable[[Iterable[Batch]], Iterator[Batch]] = iter,
    on_images: Callable[[int], None] = lambda _images: None,
) -> ModelDetections:
    """Pass all images of `loader` through `model` in evaluation mode and keep what it finds.

    `each_batch` lets others listen to the loop; `on_images` hears how many images a batch had. Targets
    need an `image_id`; nothing else of them is read.
    """
    found, plan = ModelDetections(), InferPlan(device, precision)
    start = perf_counter_ns()
    with _left_as_it_was(model), torch.no_grad():
        model.eval()
        for images, targets in each_batch(loader):
            began = perf_counter_ns()
            output = run_forward(model, images, plan, _shrink_masks)
            found.forward_ns += perf_counter_ns() - began
            per_image = _per_image(output, len(images), model)
            for image, target, one in zip(images, targets, per_image, strict=True):
                found.images.append(_as_arrays(int(target["image_id"]), image, one))
            on_images(len(images))
    found.wall_ns = perf_counter_ns() - start
    return found


def _shrink_masks(output: Any) -> Any:
    return [_with_binary_masks(one) for one in output] if isinstance(output, list | tuple) else output


def _with_binary_masks(detected: Any) -> Any:
    """Masks as truth values, [N, W, H]: a quarter of the bytes to copy, in the order run lengths want."""
    if not isinstance(detected, Mapping) or "masks" not in detected:
        return detected
    masks = detected["masks"] > MASK_THRESHOLD
    masks = masks.flatten(0, 1) if masks.dim() == 4 else masks
    return {**detected, "masks": masks.transpose(1, 2).contiguous()}


def _per_image(output: Any, images: int, model: nn.Module) -> Sequence[Mapping[str, torch.Tensor]]:
    if isinstance(output, list | tuple) and len(output) == images and all(map(is_detection, output)):
        return output
    raise OwnCodeError(
        f"accuracy cannot be measured: {find_forward(model)} gives no list of detections in evaluation mode",
        DETECTIONS,
    )


def _as_arrays(image_id: int, image: torch.Tensor, detected: Mapping[str, torch.Tensor]) -> ImageDetections:
    boxes = detected["boxes"].double().cpu().numpy().reshape(-1, 4)
    scores = detected["scores"].double().cpu().numpy()
    labels = detected["labels"].long().cpu().numpy()
    good = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    masks, keypoints = detected.get("masks"), detected.get("keypoints")
    return ImageDetections(
        image_id,
        int(image.shape[-1]),
        int(image.shape[-2]),
        boxes[good],
        scores[good],
        labels[good],
        None if masks is None else _run_lengths(masks.cpu().numpy()[good]),
        None if keypoints is None else keypoints.double().cpu().numpy()[good],
        int((~good).sum()),
    )


def _run_lengths(masks: npt.NDArray[np.bool_]) -> tuple[RunLengths, ...]:
    """Masks [N, W, H] in COCO's compressed form; read column by column, so no copy is needed."""
    from pycocotools import mask as coco_mask

    if not len(masks):
        return ()
    return tuple(coco_mask.encode(masks.view(np.uint8).transpose(2, 1, 0)))


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back the mode of every module and all random states, whatever happens in between."""
    modes = [(module, module.training) for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    devices = {str(parameter.device) for parameter in model.parameters()}
    own = [(one, one.read_random_state()) for one in map(find_accelerator, sorted(devices))]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        for device, state in own:
            if state is not None:
                device.restore_random_state(state)
