"""Every detector of torchvision. The torchvision module itself is the detector, its paths unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from detscope.errors import UsageError
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Recipe
from detscope.zoo.registry import register
from detscope.zoo.weights.download import Published

if TYPE_CHECKING:
    from torch import nn

    from detscope.zoo.weights.choice import FoundWeights

_LICENCE = "BSD-3-Clause (torchvision); trained on COCO 2017, whose terms apply"
_FROZEN_EPS = 1e-5


@dataclass(frozen=True)
class _Recipe:
    """How torchvision sets a model up for fine-tuning from its COCO weights."""

    trained_layers: int  # backbone stages left trainable
    frozen_norm: bool  # batch norm of the backbone is frozen
    frozen_eps: float = _FROZEN_EPS  # 0 for the oldest weights, made before torchvision had an epsilon
    min_image_size: int = 32  # smaller inputs leave no pixels in the last feature map


# Parameters as published: with frozen batch norm where fine-tuning freezes it.
_MODELS: tuple[tuple[ModelCard, _Recipe], ...] = (
    (
        ModelCard("fasterrcnn_resnet50_fpn", "fasterrcnn", "torchvision", 41_755_286, "800-1333", _LICENCE),
        _Recipe(3, True, 0.0),
    ),
    (
        ModelCard(
            "fasterrcnn_resnet50_fpn_v2", "fasterrcnn", "torchvision", 43_712_278, "800-1333", _LICENCE
        ),
        _Recipe(3, False),
    ),
    (
        ModelCard(
            "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn", "torchvision", 19_386_354, "800-1333", _LICENCE
        ),
        _Recipe(3, True),
    ),
    (
        ModelCard(
            "fasterrcnn_mobilenet_v3_large_320_fpn",
            "fasterrcnn",
            "torchvision",
            19_386_354,
            "320-640",
            _LICENCE,
        ),
        _Recipe(3, True),
    ),
    (
        ModelCard(
            "maskrcnn_resnet50_fpn",
            "maskrcnn",
            "torchvision",
            44_401_393,
            "800-1333",
            _LICENCE,
            needs=("masks",),
        ),
        _Recipe(3, True, 0.0),
    ),
    (
        ModelCard(
            "maskrcnn_resnet50_fpn_v2",
            "maskrcnn",
            "torchvision",
            46_359_409,
            "800-1333",
            _LICENCE,
            needs=("masks",),
        ),
        _Recipe(3, False),
    ),
    (
        ModelCard(
            "keypointrcnn_resnet50_fpn",
            "keypointrcnn",
            "torchvision",
            59_137_258,
            "640..800-1333",
            _LICENCE,
            needs=("keypoints",),
            note="17 keypoints per object; the short side is drawn from 640 to 800 in training",
        ),
        _Recipe(3, True, 0.0),
    ),
    (
        ModelCard("retinanet_resnet50_fpn", "retinanet", "torchvision", 34_014_999, "800-1333", _LICENCE),
        _Recipe(3, True, 0.0),
    ),
    (
        ModelCard("retinanet_resnet50_fpn_v2", "retinanet", "torchvision", 38_198_935, "800-1333", _LICENCE),
        _Recipe(3, False),
    ),
    (
        ModelCard("fcos_resnet50_fpn", "fcos", "torchvision", 32_269_600, "800-1333", _LICENCE),
        _Recipe(3, True),
    ),
    (
        ModelCard("ssd300_vgg16", "ssd", "torchvision", 35_641_826, "300", _LICENCE),
        _Recipe(4, False, min_image_size=268),
    ),
    (
        ModelCard(
            "ssdlite320_mobilenet_v3_large",
            "ssdlite",
            "torchvision",
            3_440_060,
            "320",
            _LICENCE,
            min_train_batch=2,
            note="trains with batch 2 or more: its last feature map is one pixel",
        ),
        _Recipe(6, False),
    ),
)
_RECIPES = {card.name: recipe for card, recipe in _MODELS}
# Rates of torchvision's reference trainings, brought down in proportion to a batch of two.
_R_CNN = Recipe("sgd", 0.0025, 1e-4)
_DENSE = Recipe("sgd", 0.00125, 1e-4, clip_gradients=10.0)
_TRAINING: dict[str, Recipe] = {
    **dict.fromkeys(("fasterrcnn", "maskrcnn", "keypointrcnn"), _R_CNN),
    **dict.fromkeys(("retinanet", "fcos"), _DENSE),
    "ssd": Recipe("sgd", 0.00025, 5e-4, batch_size=4),
    "ssdlite": Recipe("sgd", 0.003, 4e-5, batch_size=4),
}

# Layers whose shape follows the number of classes.
CLASS_HEADS: dict[str, tuple[str, ...]] = {
    "fasterrcnn": ("roi_heads.box_predictor.",),
    "maskrcnn": ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits."),
    "keypointrcnn": ("roi_heads.box_predictor.",),
    "retinanet": ("head.classification_head.cls_logits.",),
    "fcos": ("head.classification_head.cls_logits.",),
    "ssd": ("head.classification_head.module_list.",),
    "ssdlite": ("head.classification_head.module_list.",),
}


@register(
    [replace(card, recipe=_TRAINING[card.family]) for card, _ in _MODELS],
    faster_rcnn="fasterrcnn_resnet50_fpn",
    mask_rcnn="maskrcnn_resnet50_fpn",
)
def build_torchvision(
    card: ModelCard, options: BuildOptions, weights_base_url: str | None = None
) -> BuiltModel:
    """Build a torchvision detector and put its weights in."""
    from detscope.zoo.assemble import assembled
    from detscope.zoo.backbones import train_only_last
    from detscope.zoo.seeding import seeded
    from detscope.zoo.weights.choice import check_choice, find_weights, load_into

    recipe = _RECIPES[card.name]
    _check_image_size(card, options.image_size, recipe)
    check_choice(options.weights, card.name, has_published=True)
    found = find_weights(options, card.name, _published(card.name), weights_base_url)
    with seeded(options.seed):
        module = _bare_module(card.name, options.num_classes)
    trained = found.state is not None
    if recipe.frozen_norm and _has_frozen_norm(found):
        _freeze_norm(module, recipe)
    layers = options.trainable_layers
    if layers is None and trained:
        layers = recipe.trained_layers
    if layers is not None:
        train_only_last(module, layers, card.name)
    used = load_into(module, found, card.name, CLASS_HEADS[card.family])
    notes = () if trained else _notes_on_scratch(recipe, found, layers)
    return assembled(card, module, used, options.image_size, notes)


def _published(name: str) -> Published:
    from torchvision.models import get_model_weights

    return Published(get_model_weights(name).DEFAULT.url)


def _bare_module(name: str, num_classes: int | None) -> nn.Module:
    from torchvision.models import get_model_builder

    module: nn.Module = get_model_builder(name)(weights=None, weights_backbone=None, num_classes=num_classes)
    return module


def _has_frozen_norm(found: FoundWeights) -> bool:
    """Frozen batch norm keeps no counters: a file without them was made by a model with frozen norms."""
    if found.state is None:
        return False
    body = [key for key in found.state if key.startswith("backbone.body.")]
    return bool(body) and not any(key.endswith("num_batches_tracked") for key in body)


def _freeze_norm(module: nn.Module, recipe: _Recipe) -> None:
    from detscope.zoo.backbones import freeze_batch_norm

    freeze_batch_norm(module.get_submodule("backbone.body"), recipe.frozen_eps)


def _notes_on_scratch(recipe: _Recipe, found: FoundWeights, layers: int | None) -> tuple[str, ...]:
    if found.state is not None or layers is not None:
        return ()
    norms = " with live batch norm" if recipe.frozen_norm else ""
    return (
        f"trained from scratch: all backbone layers train{norms}; "
        f"from COCO weights only the last {recipe.trained_layers} stages would",
    )


def _check_image_size(card: ModelCard, image_size: int | None, recipe: _Recipe) -> None:
    if image_size is not None and image_size < recipe.min_image_size:
        raise UsageError(
            f"image_size = {image_size}: {card.name} works from {recipe.min_image_size} pixels on",
            f"use {recipe.min_image_size} or more",
        )
