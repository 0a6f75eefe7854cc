"""Faster R-CNN of torchvision, and what Mask and Keypoint R-CNN share with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import ModelCard, Observer, Recipe
from detscope.zoo.families import _torchvision as shared
from detscope.zoo.families._torchvision import FineTuning, TorchvisionFamily, published_card, tiny_card
from detscope.zoo.family import name_stages

if TYPE_CHECKING:
    from torch import Tensor, nn

ROI_HEADS = "torchvision.models.detection.roi_heads"
# Rates of torchvision's reference trainings, brought down in proportion to a batch of two.
RECIPE = Recipe("sgd", 0.0025, 1e-4)
TINY_RECIPE = Recipe("sgd", 0.02, 1e-4, lr_warmup_steps=30, clip_gradients=10.0, batch_size=4)
BOX_HEADS = ("roi_heads.box_predictor.",)
STAGES = (
    *shared.PREPROCESS,
    *shared.BACKBONE_WITH_FPN,
    *name_stages(
        ("rpn", "rpn"),
        ("rpn.head", "rpn.head"),
        ("rpn.anchors", "rpn.anchor_generator"),
        ("rpn.proposals", "rpn.filter_proposals()"),
        ("rpn.assign", "rpn.assign_targets_to_anchors()"),
        ("rpn.loss", "rpn.compute_loss()"),
        ("roi_heads", "roi_heads"),
        ("roi_heads.sample", "roi_heads.select_training_samples()"),
        ("roi_heads.pool", "roi_heads.box_roi_pool"),
        ("roi_heads.box_head", "roi_heads.box_head"),
        ("roi_heads.box_predictor", "roi_heads.box_predictor"),
        ("roi_heads.loss", f"{ROI_HEADS}:fastrcnn_loss"),
        ("roi_heads.postprocess", "roi_heads.postprocess_detections()"),
        (".nms", shared.BATCHED_NMS),
        ("postprocess", "transform.postprocess()"),
    ),
)
OBSERVERS = (
    *shared.OBSERVERS,
    Observer("rpn", lambda output: {"proposals": sum(boxes.shape[0] for boxes in output[0])}),
    Observer(
        "roi_heads.select_training_samples()",
        lambda output: {"sampled_rois": sum(boxes.shape[0] for boxes in output[0])},
    ),
)


@dataclass(frozen=True, kw_only=True)
class RcnnFamily(TorchvisionFamily):
    """A proposal network and heads on pooled regions."""

    observers: tuple[Observer, ...] = OBSERVERS

    def trace_outputs(self, module: Any, images: Tensor) -> list[Tensor]:
        """Those of the proposal network and of every head, on regions that are all of the image."""
        features = module.backbone(images)
        outputs = [output for levels in module.rpn.head(list(features.values())) for output in levels]
        heads = module.roi_heads
        outputs += heads.box_predictor(heads.box_head(_pool_levels(features, heads.box_roi_pool)))
        for kind in ("mask", "keypoint"):
            if getattr(heads, f"{kind}_head", None) is not None:
                pooled = _pool_levels(features, getattr(heads, f"{kind}_roi_pool"))
                predictor = getattr(heads, f"{kind}_predictor")
                outputs.append(predictor(getattr(heads, f"{kind}_head")(pooled)))
        return outputs


def _pool_levels(features: dict[str, Tensor], roi_pool: Any) -> Tensor:
    """What RoI pooling means for channels: those of all levels are the same, the size is fixed."""
    from torch.nn.functional import adaptive_avg_pool2d

    levels = [adaptive_avg_pool2d(features[name], roi_pool.output_size) for name in roi_pool.featmap_names]
    total = levels[0]
    for level in levels[1:]:
        total = total + level
    return total


def make_tiny_rcnn(
    detector: Callable[..., nn.Module], num_classes: int, make_heads: Callable[[], dict[str, Any]] = dict
) -> nn.Module:
    """A tiny R-CNN; `make_heads` gives what it has beside boxes."""
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.rpn import AnchorGenerator, RPNHead

    from detscope.zoo.families._tiny_backbones import make_resnet_with_fpn

    channels, ratios = shared.TINY_CHANNELS, shared.TINY_RATIOS
    sizes = ((8,), (16,), (32,), (64,), (128,))
    return detector(  # random weights depend on the order in which layers are made here
        make_resnet_with_fpn(shared.TINY_WIDTH, channels, levels=(1, 2, 3, 4), deeper=False),
        box_predictor=FastRCNNPredictor(128, num_classes),
        **make_heads(),
        min_size=shared.TINY_SIZE,
        max_size=shared.TINY_LONGEST,
        rpn_anchor_generator=AnchorGenerator(sizes, (ratios,) * len(sizes)),
        rpn_head=RPNHead(channels, len(ratios)),
        rpn_pre_nms_top_n_train=200,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_train=200,
        rpn_post_nms_top_n_test=100,
        rpn_batch_size_per_image=64,
        box_roi_pool=make_tiny_pool(5),
        box_head=TwoMLPHead(channels * 5**2, 128),
        box_batch_size_per_image=64,
    )


def make_tiny_pool(size: int) -> nn.Module:
    """RoI pooling of a tiny R-CNN."""
    from torchvision.ops import MultiScaleRoIAlign

    pool: nn.Module = MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=size, sampling_ratio=2)
    return pool


def _make_tiny(num_classes: int) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FasterRCNN

    return make_tiny_rcnn(FasterRCNN, num_classes)


def _make_card(name: str, parameters: int, input_size: str = "800-1333") -> ModelCard:
    return published_card("fasterrcnn", name, parameters, input_size, RECIPE)


PART = RcnnFamily(
    name="fasterrcnn",
    order=10,
    cards=(
        _make_card("fasterrcnn_resnet50_fpn", 41_755_286),
        _make_card("fasterrcnn_resnet50_fpn_v2", 43_712_278),
        _make_card("fasterrcnn_mobilenet_v3_large_fpn", 19_386_354),
        _make_card("fasterrcnn_mobilenet_v3_large_320_fpn", 19_386_354, "320-640"),
    ),
    fine_tuning={
        "fasterrcnn_resnet50_fpn": FineTuning(3, True, 0.0),
        "fasterrcnn_resnet50_fpn_v2": FineTuning(3, False),
        "fasterrcnn_mobilenet_v3_large_fpn": FineTuning(3, True),
        "fasterrcnn_mobilenet_v3_large_320_fpn": FineTuning(3, True),
    },
    tiny=tiny_card("fasterrcnn", 1_667_656, shared.TINY_RESIZED, recipe=TINY_RECIPE),
    make_tiny=_make_tiny,
    short_names={"faster-rcnn": "fasterrcnn_resnet50_fpn"},
    stages=STAGES,
    class_heads=BOX_HEADS,
    detector_classes=("torchvision.models.detection.faster_rcnn:FasterRCNN",),
)
