"""What a detector has to give, losses in training and detections in evaluation; else its line is named."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from detscope.errors import OwnCodeError

_LOSSES = "in training mode return a dict of losses: a name each, and one number as a tensor with a gradient"
DETECTIONS = (
    "expected one dict per image with boxes (N x 4: x1, y1, x2, y2 in image pixels), labels (N), scores (N)"
)


def find_forward(module: Any) -> str:
    """`file.py:12`, where the class of a module says how it goes forward; its name where nobody knows."""
    kind = type(getattr(module, "module", module))  # behind a wrapper of several ranks
    try:
        lines, first = inspect.getsourcelines(kind)
        inside = next((number for number, line in enumerate(lines) if "def forward(" in line), 0)
        return f"{inspect.getsourcefile(kind)}:{first + inside}"
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


def check_losses(losses: Any, module: Any) -> None:
    """Refuse what no training step can be made of."""
    import torch

    def refuse_loss(what: str) -> OwnCodeError:
        return OwnCodeError(f"{find_forward(module)}: the model gave {what}", _LOSSES)

    if not isinstance(losses, Mapping):
        raise refuse_loss(f"{name_kind(losses)} instead of a dict of losses")
    if not losses:
        raise refuse_loss("an empty dict of losses")
    for name, loss in losses.items():
        if not isinstance(name, str):
            raise refuse_loss(f"a loss whose name is {name_kind(name)}")
        if not isinstance(loss, torch.Tensor):
            raise refuse_loss(f"{name_kind(loss)} as {name}")
        if loss.numel() != 1:
            raise refuse_loss(f"{loss.numel()} numbers of shape {list(loss.shape)} as {name}")
        if loss.is_complex():
            raise refuse_loss(f"a complex number as {name}")
    if not any(loss.requires_grad for loss in losses.values()):
        raise refuse_loss(f"losses without a gradient ({', '.join(losses)})")


def is_detection(value: Any) -> bool:
    """Whether a value is what a detector finds in one image: boxes, labels and scores as tensors that fit."""
    import torch

    if not isinstance(value, Mapping):
        return False
    found: list[Any] = [value.get(name) for name in ("boxes", "labels", "scores")]
    if not all(isinstance(one, torch.Tensor) and not one.is_complex() for one in found):
        return False
    boxes, labels, scores = found
    number = len(scores) if scores.dim() == 1 else -1
    for name, dimensions in (("masks", (3, 4)), ("keypoints", (3,))):
        more = value.get(name)
        if more is not None and not (
            isinstance(more, torch.Tensor) and more.dim() in dimensions and len(more) == number
        ):
            return False
    return tuple(boxes.shape) == (number, 4) and tuple(labels.shape) == (number,)


def name_kind(value: Any) -> str:
    """`a tuple`, `an int`, `nothing (None)`."""
    name = type(value).__name__
    return "nothing (None)" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
