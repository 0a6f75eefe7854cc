"""A tiny variant of every family: the true architecture on a small backbone and small images.

They have batch norm that trains, anchors sized for 128 pixel images, and few proposals: on a CPU
the backward pass of RoIAlign runs on one thread and would otherwise outweigh everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Recipe
from detscope.zoo.registry import register

if TYPE_CHECKING:
    from torch import nn

_SIZE, _LONGEST = 128, 160
_CLASSES = 5  # with background
_WIDTH = 32
_CHANNELS = 64
_KEYPOINTS = 17
_RATIOS = (0.5, 1.0, 2.0)


# From random weights, on a few hundred images: larger rates than the published fine-tuning ones. Tried on the
# synthetic shapes; what each reaches is in docs/training.md.
_TWO_STAGE = Recipe("sgd", 0.02, 1e-4, lr_warmup_steps=30, clip_gradients=10.0, batch_size=4)
_ONE_STAGE = Recipe("adamw", 0.002, 1e-4, lr_warmup_steps=30, clip_gradients=10.0, batch_size=4)
_EFFICIENT = Recipe("adamw", 0.006, 1e-4, lr_warmup_steps=30, clip_gradients=10.0, batch_size=4)
_RECIPES = {"fasterrcnn": _TWO_STAGE, "maskrcnn": _TWO_STAGE, "keypointrcnn": _TWO_STAGE}


def _card(family: str, parameters: int, input_size: str, **more: Any) -> ModelCard:
    recipe = more.pop("recipe", None) or _RECIPES.get(family, _ONE_STAGE)
    return ModelCard(f"tiny_{family}", family, "tiny", parameters, input_size, "none", recipe=recipe, **more)


_RESIZED = f"{_SIZE}-{_LONGEST}"
_ONE_PIXEL = {"min_train_batch": 2, "note": "trains with batch 2 or more: its last feature map is one pixel"}
_CARDS = (
    _card("fasterrcnn", 1_667_656, _RESIZED),
    _card("maskrcnn", 1_699_661, _RESIZED, needs=("masks",)),
    _card("keypointrcnn", 1_704_089, _RESIZED, needs=("keypoints",), note="17 keypoints per object"),
    _card("retinanet", 1_782_065, _RESIZED),
    _card("fcos", 1_742_122, _RESIZED),
    _card("ssd", 1_193_044, str(_SIZE), single_pixel_size=64),
    _card("ssdlite", 205_660, str(_SIZE), **_ONE_PIXEL),
)


@register(_CARDS)
def build_tiny(card: ModelCard, options: BuildOptions) -> BuiltModel:
    """Build a tiny torchvision detector; its weights are random or from a file, never downloaded."""
    from detscope.zoo.assemble import assembled
    from detscope.zoo.backbones import train_only_last
    from detscope.zoo.seeding import seeded
    from detscope.zoo.families._torchvision import CLASS_HEADS
    from detscope.zoo.weights.choice import find_weights, load_into

    found = find_weights(options, card.name, published=None)
    with seeded(options.seed):
        module = _MAKERS[card.family](options.num_classes or _CLASSES)
    if options.trainable_layers is not None:
        train_only_last(module, options.trainable_layers, card.name)
    used = load_into(module, found, card.name, CLASS_HEADS[card.family])
    return assembled(card, module, used, options.image_size)


def _rcnn_settings() -> dict[str, Any]:
    """What the three R-CNNs share."""
    from torchvision.models.detection.faster_rcnn import TwoMLPHead
    from torchvision.models.detection.rpn import AnchorGenerator, RPNHead
    from torchvision.ops import MultiScaleRoIAlign

    sizes = ((8,), (16,), (32,), (64,), (128,))
    anchors = AnchorGenerator(sizes, (_RATIOS,) * len(sizes))
    return {
        "min_size": _SIZE,
        "max_size": _LONGEST,
        "rpn_anchor_generator": anchors,
        "rpn_head": RPNHead(_CHANNELS, len(_RATIOS)),
        "rpn_pre_nms_top_n_train": 200,
        "rpn_pre_nms_top_n_test": 200,
        "rpn_post_nms_top_n_train": 200,
        "rpn_post_nms_top_n_test": 100,
        "rpn_batch_size_per_image": 64,
        "box_roi_pool": MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=5, sampling_ratio=2),
        "box_head": TwoMLPHead(_CHANNELS * 5**2, 128),
        "box_batch_size_per_image": 64,
    }


def _rcnn_backbone() -> Any:
    from detscope.zoo.families._tiny_backbones import resnet_with_fpn

    return resnet_with_fpn(_WIDTH, _CHANNELS, levels=(1, 2, 3, 4), deeper=False)


def _fasterrcnn(num_classes: int) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNPredictor

    module: nn.Module = FasterRCNN(
        _rcnn_backbone(), box_predictor=FastRCNNPredictor(128, num_classes), **_rcnn_settings()
    )
    return module


def _maskrcnn(num_classes: int) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    module: nn.Module = MaskRCNN(
        _rcnn_backbone(),
        box_predictor=FastRCNNPredictor(128, num_classes),
        mask_roi_pool=MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=14, sampling_ratio=2),
        mask_head=MaskRCNNHeads(_CHANNELS, (32, 32), dilation=1),
        mask_predictor=MaskRCNNPredictor(32, 32, num_classes),
        **_rcnn_settings(),
    )
    return module


def _keypointrcnn(num_classes: int) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    from torchvision.models.detection.keypoint_rcnn import (
        KeypointRCNN,
        KeypointRCNNHeads,
        KeypointRCNNPredictor,
    )
    from torchvision.ops import MultiScaleRoIAlign

    module: nn.Module = KeypointRCNN(
        _rcnn_backbone(),
        box_predictor=FastRCNNPredictor(128, num_classes),
        keypoint_roi_pool=MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=14, sampling_ratio=2),
        keypoint_head=KeypointRCNNHeads(_CHANNELS, (32, 32)),
        keypoint_predictor=KeypointRCNNPredictor(32, _KEYPOINTS),
        **_rcnn_settings(),
    )
    return module


def _retinanet(num_classes: int) -> nn.Module:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.retinanet import RetinaNet

    from detscope.zoo.families._tiny_backbones import resnet_with_fpn

    bases = (12, 24, 48, 96, 160)
    sizes = tuple(tuple(round(base * 2 ** (octave / 3)) for octave in range(3)) for base in bases)
    module: nn.Module = RetinaNet(
        resnet_with_fpn(_WIDTH, _CHANNELS, levels=(2, 3, 4), deeper=True),
        num_classes,
        min_size=_SIZE,
        max_size=_LONGEST,
        anchor_generator=AnchorGenerator(sizes, (_RATIOS,) * len(sizes)),
    )
    return module


def _fcos(num_classes: int) -> nn.Module:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.fcos import FCOS

    from detscope.zoo.families._tiny_backbones import resnet_with_fpn

    sizes = ((8,), (16,), (32,), (64,), (128,))  # one per level, equal to its stride
    module: nn.Module = FCOS(
        resnet_with_fpn(_WIDTH, _CHANNELS, levels=(2, 3, 4), deeper=True),
        num_classes,
        min_size=_SIZE,
        max_size=_LONGEST,
        anchor_generator=AnchorGenerator(sizes, ((1.0,),) * len(sizes)),
    )
    return module


def _ssd(num_classes: int) -> nn.Module:
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD

    from detscope.zoo.families._tiny_backbones import SmallVgg

    anchors = DefaultBoxGenerator(
        [[2], [2, 3], [2, 3], [2]], scales=[0.1, 0.2, 0.4, 0.7, 1.0], steps=[8, 16, 32, 64]
    )
    module: nn.Module = SSD(SmallVgg(_WIDTH), anchors, (_SIZE, _SIZE), num_classes)
    return module


def _ssdlite(num_classes: int) -> nn.Module:
    from functools import partial

    from torch import nn
    from torchvision.models.detection._utils import retrieve_out_channels
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD
    from torchvision.models.detection.ssdlite import SSDLiteHead

    from detscope.zoo.families._tiny_backbones import small_ssdlite_extractor

    norm_layer = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    backbone = small_ssdlite_extractor(norm_layer)
    anchors = DefaultBoxGenerator([[2, 3]] * 6, min_ratio=0.15, max_ratio=0.95)
    channels = retrieve_out_channels(backbone, (_SIZE, _SIZE))
    head = SSDLiteHead(channels, anchors.num_anchors_per_location(), num_classes, norm_layer)
    module: nn.Module = SSD(
        backbone, anchors, (_SIZE, _SIZE), num_classes, head=head, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return module


_MAKERS: dict[str, Callable[[int], nn.Module]] = {
    "fasterrcnn": _fasterrcnn,
    "maskrcnn": _maskrcnn,
    "keypointrcnn": _keypointrcnn,
    "retinanet": _retinanet,
    "fcos": _fcos,
    "ssd": _ssd,
    "ssdlite": _ssdlite,
}

_EFFICIENTDET_CARD = _card("efficientdet", 600_472, str(_SIZE), single_pixel_size=64, recipe=_EFFICIENT)


@register(_EFFICIENTDET_CARD)
def build_tiny_efficientdet(card: ModelCard, options: BuildOptions) -> BuiltModel:
    """EfficientDet with two narrow BiFPN cells on TinyNet-E, a shrunk EfficientNet, levels 3 to 6."""
    from detscope.zoo.families.efficientdet import check_options, effdet_config, finish
    from detscope.zoo.weights.choice import find_weights

    check_options(card, options)
    found = find_weights(options, card.name, published=None)
    config = effdet_config("efficientdet_lite0")
    config.name = card.name
    config.backbone_name, config.backbone_args = "tinynet_e", {}
    config.image_size = (_SIZE, _SIZE)
    config.num_classes = _CLASSES - 1
    config.max_level, config.num_levels = 6, 4
    config.anchor_scale = 2.0
    config.fpn_channels, config.fpn_cell_repeats, config.box_class_repeats = 32, 2, 2
    config.max_detection_points = 1000
    return finish(card, config, options, found)
