"""What torchvision's families share. The torchvision module itself is the detector, its paths unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.errors import UsageError
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Observer, Recipe, Stage
from detscope.zoo.family import TINY_CLASSES, Family, count_detections, count_pixels, has_target, name_stages

if TYPE_CHECKING:
    from torch import nn

    from detscope.zoo.weights import PublishedWeights

_LICENCE = "BSD-3-Clause (torchvision); trained on COCO 2017, whose terms apply"
BATCHED_NMS = "torchvision.ops.boxes:batched_nms"

PREPROCESS = name_stages(("preprocess", "transform"))
BACKBONE_WITH_FPN = name_stages(("backbone", "backbone.body"), ("fpn", "backbone.fpn"))
# Single-stage detectors run non-maximum suppression in one place only. The R-CNNs call the same function
# from two stages: there it is `.nms`, a part of whichever stage is running.
SINGLE_STAGE = name_stages(
    ("head", "head"),
    ("head.classification", "head.classification_head"),
    ("head.regression", "head.regression_head"),
    ("anchors", "anchor_generator"),
    ("loss", "compute_loss()"),
    ("postprocess", "postprocess_detections()"),
    ("postprocess.nms", BATCHED_NMS),
    ("postprocess", "transform.postprocess()"),
)
OBSERVERS = (
    Observer("transform", lambda output: count_pixels(output[0])),  # it gives (images, targets)
    Observer("transform.postprocess()", count_detections),
)

# The tiny variants have batch norm that trains, anchors sized for 128 pixel images, and few proposals: on a
# CPU the backward pass of RoIAlign runs on one thread and would otherwise outweigh everything else.
TINY_SIZE, TINY_LONGEST = 128, 160
TINY_WIDTH, TINY_CHANNELS = 32, 64
TINY_RESIZED = f"{TINY_SIZE}-{TINY_LONGEST}"
TINY_RATIOS = (0.5, 1.0, 2.0)
# From random weights, on a few hundred images: larger rates than the published fine-tuning ones. Tried on the
# synthetic shapes; what each reaches is in docs/training.md.
_TINY_RECIPE = Recipe("adamw", 0.002, 1e-4, lr_warmup_steps=30, clip_gradients=10.0, batch_size=4)


@dataclass(frozen=True)
class FineTuning:
    """How torchvision sets a model up for fine-tuning from its COCO weights."""

    trained_layers: int  # backbone stages left trainable
    frozen_norm: bool  # batch norm of the backbone is frozen
    frozen_eps: float = 1e-5  # 0 for the oldest weights, made before torchvision had an epsilon
    min_image_size: int = 32  # smaller inputs leave no pixels in the last feature map


@dataclass(frozen=True, kw_only=True)
class TorchvisionFamily(Family):
    """A family whose models torchvision builds by name; only the tiny one is put together here."""

    fine_tuning: Mapping[str, FineTuning]  # by card
    make_tiny: Callable[[int], nn.Module]  # takes the number of classes
    observers: tuple[Observer, ...] = OBSERVERS

    def build_model(
        self, card: ModelCard, options: BuildOptions, weights_base_url: str | None = None
    ) -> BuiltModel:
        """Build the detector and put its weights in; those of a tiny one are never downloaded."""
        from detscope.zoo.weights import check_choice, find_weights, load_into, seed_weights

        tuning = self.fine_tuning.get(card.name)
        size = options.image_size
        if tuning is not None and size is not None and size < tuning.min_image_size:
            raise UsageError(
                f"image_size = {size}: {card.name} works from {tuning.min_image_size} pixels on",
                f"use {tuning.min_image_size} or more",
            )
        check_choice(options.weights, card.name, has_published=tuning is not None)
        published = None if tuning is None else find_published(card.name)
        found = find_weights(options, card.name, published, weights_base_url)
        with seed_weights(options.seed):
            module = (
                self.make_tiny(options.num_classes or TINY_CLASSES)
                if tuning is None
                else make_bare(card.name, options.num_classes)
            )
        layers = options.trainable_layers
        notes: tuple[str, ...] = ()
        if tuning is not None:
            # frozen batch norm keeps no counters: a file without them was made by a model with frozen norms
            body = [key for key in found.state or () if key.startswith("backbone.body.")]
            was_frozen = bool(body) and not any(key.endswith("num_batches_tracked") for key in body)
            if tuning.frozen_norm and was_frozen:
                freeze_batch_norm(module.get_submodule("backbone.body"), tuning.frozen_eps)
            if found.state is None and layers is None:
                norms = " with live batch norm" if tuning.frozen_norm else ""
                notes = (
                    f"trained from scratch: all backbone layers train{norms}; "
                    f"from COCO weights only the last {tuning.trained_layers} stages would",
                )
            elif layers is None:
                layers = tuning.trained_layers
        if layers is not None:
            train_only_last(module, layers, card.name)
        used = load_into(module, found, card.name, self.class_heads)
        if size is not None:
            _set_image_size(module.get_submodule("transform"), size)
        return self.describe_model(card, module, used, notes)

    def find_stages(self, module: nn.Module) -> tuple[Stage, ...]:
        """With a backbone of one's own, which has neither body nor FPN, as one stage."""
        kept = super().find_stages(module)
        has_body = any(stage.name == "backbone" for stage in kept)
        if not has_body and has_target(module, "backbone"):
            kept = (*kept[:1], Stage("backbone", "backbone"), *kept[1:])
        return kept


def published_card(
    family: str, name: str, parameters: int, input_size: str, recipe: Recipe, **more: Any
) -> ModelCard:
    """A model of torchvision; parameters as published: batch norm is frozen where fine-tuning freezes it."""
    return ModelCard(name, family, "torchvision", parameters, input_size, _LICENCE, recipe=recipe, **more)


def tiny_card(family: str, parameters: int, input_size: str, **more: Any) -> ModelCard:
    """The tiny variant of a family."""
    more.setdefault("recipe", _TINY_RECIPE)
    return ModelCard(f"tiny_{family}", family, "tiny", parameters, input_size, "none", **more)


def find_published(name: str) -> PublishedWeights:
    """Where torchvision offers the COCO weights of a model."""
    from torchvision.models import get_model_weights

    from detscope.zoo.weights import PublishedWeights

    return PublishedWeights(get_model_weights(name).DEFAULT.url)


def make_bare(name: str, num_classes: int | None) -> nn.Module:
    """A model of torchvision with random weights."""
    from torchvision.models import get_model_builder

    module: nn.Module = get_model_builder(name)(weights=None, weights_backbone=None, num_classes=num_classes)
    return module


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
    stages = [] if backbone is None else _list_backbone_stages(backbone)
    if not stages:
        raise UsageError(f"{model_name} does not know trainable_layers", "leave trainable_layers out")
    if not 0 <= layers <= len(stages):
        raise UsageError(
            f"trainable_layers = {layers}: the backbone of {model_name} has {len(stages)} stages",
            f"use a number from 0 to {len(stages)}",
        )
    for stage in stages[: len(stages) - layers]:
        for part in stage:
            part.requires_grad_(False)


def _list_backbone_stages(backbone: nn.Module) -> list[list[nn.Module]]:
    """The parts of each stage, the first stage first."""
    children = dict(backbone.named_children())
    body = children.get("body", backbone)
    parts = dict(body.named_children())
    if "layer1" in parts:  # ResNet: the stem counts as one stage
        stem = [parts[name] for name in ("conv1", "bn1") if name in parts]
        return [stem, *([parts[f"layer{number}"]] for number in (1, 2, 3, 4))]
    if "features" in children and "extra" in children:
        return _list_ssd_stages(children["features"], children["extra"])
    blocks = list(body.children())
    strided = _find_strided(blocks)  # MobileNet: first and last block count as stages too
    return _split_blocks(blocks, [0, *strided, len(blocks) - 1]) if strided else []


def _list_ssd_stages(features: nn.Module, extra: nn.Module) -> list[list[nn.Module]]:
    from torch import nn

    halves = list(features.children())
    if all(isinstance(half, nn.Sequential) for half in halves):
        # SSDLite cuts MobileNet inside its C4 block: the last part of the first half begins that stage
        first, second = (list(half.children()) for half in halves)
        blocks = [*first, *second]
        return _split_blocks(blocks, [0, *_find_strided(first), len(first) - 1, len(blocks) - 1])
    tail = list(next(extra.children()).children())[:-1]  # VGG from its fourth pooling on, without fc6 and fc7
    blocks = [*halves, *tail]
    pools = [index for index, block in enumerate(blocks) if isinstance(block, nn.MaxPool2d)]
    return _split_blocks(blocks, [0, *pools])


def _find_strided(blocks: list[nn.Module]) -> list[int]:
    return [index for index, block in enumerate(blocks) if getattr(block, "_is_cn", False)]


def _split_blocks(blocks: list[nn.Module], begins: list[int]) -> list[list[nn.Module]]:
    return [blocks[begin:end] for begin, end in zip(begins, [*begins[1:], len(blocks)], strict=True)]


def _set_image_size(transform: Any, image_size: int) -> None:
    """Short side becomes `image_size`, the longest allowed side keeps its ratio to it; SSD stays square."""
    if transform.fixed_size is not None:
        transform.fixed_size = (image_size, image_size)
        transform.min_size, transform.max_size = (image_size,), image_size
        return
    longest = round(image_size * transform.max_size / max(transform.min_size))
    transform.min_size, transform.max_size = (image_size,), longest
