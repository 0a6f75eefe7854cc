"""The operators of detectors as torch runs them; what no gradient flows to is made beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detscope.predict.layers.times import (
    ARITHMETIC,
    BILINEAR,
    GROUP_NORM,
    INDEX,
    LOSS,
    NEAREST,
    NMS,
    REDUCTION,
    ROI_ALIGN,
    SMALL,
    SORTING,
    VIEW,
)
from detscope.predict.microbench.trial import Trial

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[..., Any]
_GROUP = 8
_TRUTHS = 5  # boxes that an image's anchors are compared with
_CELLS = 8  # pixels to one cell of a map


def detection_call(torch: Any, device: str, trial: Trial) -> Function | None:
    """The function of a trial; None where it is no operator of detectors."""
    made = _MAKERS.get(trial.operation.kind)
    return None if made is None else made(torch, device, trial)


def _made_boxes(torch: Any, device: str, count: int, side: float) -> Tensor:
    """Corners of boxes of all sizes, most of them with little in common."""
    middles = side * torch.rand(count, 2, device=device)
    halves = side * (0.02 + 0.2 * torch.rand(count, 2, device=device) ** 2)
    found: Tensor = torch.cat([(middles - halves).clamp(min=0), (middles + halves).clamp(max=side)], 1)
    return found


def _roi_align(torch: Any, device: str, trial: Trial) -> Function:
    from torchvision.ops import roi_align

    (_, _, height, _), (boxes, _) = trial.operation.input_shapes
    count, window = trial.batch * boxes, trial.operation.output_shape[2]
    corners = _made_boxes(torch, device, count, _CELLS * height)
    images = torch.arange(count, device=device).div(boxes, rounding_mode="floor")
    regions = torch.cat([images[:, None].to(corners), corners], 1)
    return lambda image, _: roi_align(image, regions, window, 1 / _CELLS, 2)


def _nms(torch: Any, device: str, trial: Trial) -> Function:
    from torchvision.ops import nms

    count = trial.operation.output_shape[0]
    boxes, scores = _made_boxes(torch, device, count, 512.0), torch.rand(count, device=device)
    boxes[count // 2 :] = boxes[: count - count // 2].clone()  # half of them overlap another and are left out
    return lambda _: nms(boxes, scores, 0.7)


def _group_norm(torch: Any, device: str, trial: Trial) -> Function:
    channels = trial.operation.output_shape[1]
    module: Function = torch.nn.GroupNorm(channels // _GROUP, channels).to(device)
    return module


def _nearest(torch: Any, _: str, trial: Trial) -> Function:
    size = trial.operation.output_shape[2:]
    return lambda image: torch.nn.functional.interpolate(image, size=size, mode="nearest")


def _bilinear(torch: Any, _: str, trial: Trial) -> Function:
    size = trial.operation.output_shape[2:]
    return lambda image: torch.nn.functional.interpolate(
        image, size=size, mode="bilinear", align_corners=False
    )


def _arithmetic(torch: Any, _: str, trial: Trial) -> Function:
    if trial.variant == "clamp":
        return lambda one: one.clamp(min=-1.0, max=1.0)
    found: Function = getattr(torch, trial.variant)
    return found


def _reduction(_: Any, __: str, trial: Trial) -> Function:
    if trial.variant == "sum":
        return lambda one: one.sum()
    return lambda one: one.max(1)[0]


def _index(torch: Any, device: str, trial: Trial) -> Function:
    among, wanted = (
        trial.batch * shape[0] for shape in (*trial.operation.input_shapes, trial.operation.output_shape)
    )
    rows = torch.randint(among, (wanted,), device=device)
    return lambda one: one[rows]


def _sorting(_: Any, __: str, trial: Trial) -> Function:
    kept = trial.operation.output_shape[0]
    if trial.variant == "topk":
        return lambda one: one.topk(kept)
    return lambda one: one.sort(descending=True)


def _loss(torch: Any, device: str, trial: Trial) -> Function:
    rows, width = trial.operation.input_shapes[0]
    truth = torch.rand(trial.batch * rows, width, device=device)
    functional = torch.nn.functional
    how = "sum" if trial.operation.output_shape == (1,) else "none"
    if trial.variant == "smooth_l1":
        return lambda one: functional.smooth_l1_loss(one, truth, beta=0.1, reduction=how)
    return lambda one: functional.binary_cross_entropy_with_logits(one, truth, reduction=how)


def _views(torch: Any, device: str, _: Trial) -> Function:
    boxes = torch.rand(64, 4, device=device)

    def run() -> None:
        boxes[:, 0]
        boxes[:, 1:3]
        boxes[:, None]
        boxes.view(-1)
        boxes.unbind(1)
        boxes.permute(1, 0)

    return run


def _small(torch: Any, device: str, trial: Trial) -> Function:
    """Twelve operators on columns of boxes, on all of them, and on them against some truths."""
    boxes = torch.rand(int(trial.variant), 4, device=device)
    left, right = boxes[:, 0].clone(), boxes[:, 2].clone()
    row, column = left[None], torch.rand(_TRUTHS, 1, device=device)
    everywhere = left < 2

    def run() -> None:
        width = right - left
        half = 0.5 * width
        left + half
        wide = width >= 0.1
        both = wide & everywhere
        torch.stack((left, right, half, width), 1)
        torch.maximum(row, column).max(0)
        chosen = torch.nonzero(everywhere)
        boxes[chosen]
        boxes.clamp(min=0.1)
        torch.zeros_like(both)

    return run


_MAKERS: dict[str, Callable[[Any, str, Trial], Function]] = {
    ROI_ALIGN: _roi_align,
    NMS: _nms,
    GROUP_NORM: _group_norm,
    NEAREST: _nearest,
    BILINEAR: _bilinear,
    ARITHMETIC: _arithmetic,
    REDUCTION: _reduction,
    INDEX: _index,
    SORTING: _sorting,
    LOSS: _loss,
    VIEW: _views,
    SMALL: _small,
}
