"""Backbones as fine-tuning wants them: batch norm frozen, only the last stages trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detscope.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


def freeze_batch_norm(module: nn.Module, eps: float) -> None:
    """Replace every BatchNorm2d below `module` by torchvision's FrozenBatchNorm2d."""
    from torch import nn
    from torchvision.ops import FrozenBatchNorm2d

    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, FrozenBatchNorm2d(child.num_features, eps=eps))
        else:
            freeze_batch_norm(child, eps)


def train_only_last(module: nn.Module, layers: int, model_name: str) -> None:
    """Freeze the backbone except its last `layers` stages, counted as torchvision counts them."""
    backbone = dict(module.named_children()).get("backbone")
    stages = [] if backbone is None else _stages_first_to_last(backbone)
    if not stages:
        raise UsageError(f"{model_name} does not know trainable_layers", "leave trainable_layers out")
    if not 0 <= layers <= len(stages):
        raise UsageError(
            f"trainable_layers = {layers}: the backbone of {model_name} has {len(stages)} stages",
            f"use a number from 0 to {len(stages)}",
        )
    for stage in stages[: len(stages) - layers]:
        for part in stage:
            for parameter in part.parameters():
                parameter.requires_grad_(False)


def _stages_first_to_last(backbone: nn.Module) -> list[list[nn.Module]]:
    children = dict(backbone.named_children())
    body = children.get("body", backbone)
    parts = dict(body.named_children())
    if "layer1" in parts:  # ResNet: the stem counts as one stage
        stem = [parts[name] for name in ("conv1", "bn1") if name in parts]
        return [stem, *([parts[f"layer{number}"]] for number in (1, 2, 3, 4))]
    if "features" in children and "extra" in children:
        return _ssd_stages(children["features"], children["extra"])
    blocks = list(body.children())
    strided = _strided(blocks)  # MobileNet: first and last block count as stages too
    return _split(blocks, [0, *strided, len(blocks) - 1]) if strided else []


def _ssd_stages(features: nn.Module, extra: nn.Module) -> list[list[nn.Module]]:
    from torch import nn

    halves = list(features.children())
    if all(isinstance(half, nn.Sequential) for half in halves):
        # SSDLite cuts MobileNet inside its C4 block: the last part of the first half begins that stage
        first, second = (list(half.children()) for half in halves)
        blocks = [*first, *second]
        return _split(blocks, [0, *_strided(first), len(first) - 1, len(blocks) - 1])
    tail = list(next(extra.children()).children())[:-1]  # VGG from its fourth pooling on, without fc6 and fc7
    blocks = [*halves, *tail]
    return _split(blocks, [0, *(i for i, block in enumerate(blocks) if isinstance(block, nn.MaxPool2d))])


def _strided(blocks: list[nn.Module]) -> list[int]:
    return [index for index, block in enumerate(blocks) if getattr(block, "_is_cn", False)]


def _split(blocks: list[nn.Module], begins: list[int]) -> list[list[nn.Module]]:
    return [blocks[begin:end] for begin, end in zip(begins, [*begins[1:], len(blocks)], strict=True)]
