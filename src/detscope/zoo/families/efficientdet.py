"""EfficientDet D0-D7x and lite by effdet, with the list-of-images contract of all other detectors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from detscope.errors import UsageError
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Observer, Recipe
from detscope.zoo.family import TINY_CLASSES, Family, count_detections, count_pixels, name_stages

if TYPE_CHECKING:
    from torch import Tensor

_LICENCE = "Apache-2.0 (effdet); trained on COCO 2017, whose terms apply"
_PORTED = "Apache-2.0 (Google AutoML, ported by effdet); trained on COCO 2017, whose terms apply"
_SIZE_STEP = 32  # the deepest stride of the backbone
_TINY_SIZE = 128
_RECIPE = Recipe("adamw", 2e-4, 4e-5, clip_gradients=10.0, batch_size=4)
_TINY_RECIPE = Recipe("adamw", 0.006, 1e-4, lr_warmup_steps=30, clip_gradients=10.0, batch_size=4)

# name, parameters with 90 classes, input size, whether effdet offers weights
_MODELS: tuple[tuple[str, int, int, bool], ...] = (
    ("efficientdet_d0", 3_877_763, 512, True),
    ("efficientdet_d1", 6_622_026, 640, True),
    ("efficientdet_d2", 8_091_215, 768, False),
    ("efficientdet_d3", 12_022_376, 896, False),
    ("efficientdet_d4", 20_723_675, 1024, False),
    ("efficientdet_d5", 33_653_315, 1280, False),
    ("efficientdet_lite0", 3_241_223, 384, False),
    ("tf_efficientdet_d0", 3_880_067, 512, True),
    ("tf_efficientdet_d1", 6_625_898, 640, True),
    ("tf_efficientdet_d2", 8_097_039, 768, True),
    ("tf_efficientdet_d3", 12_032_296, 896, True),
    ("tf_efficientdet_d4", 20_723_675, 1024, True),
    ("tf_efficientdet_d5", 33_653_315, 1280, True),
    ("tf_efficientdet_d6", 51_871_782, 1280, True),
    ("tf_efficientdet_d7", 51_871_782, 1536, True),
    ("tf_efficientdet_d7x", 77_147_166, 1536, True),
    ("tf_efficientdet_d0_ap", 3_880_067, 512, True),
    ("tf_efficientdet_d1_ap", 6_625_898, 640, True),
    ("tf_efficientdet_d2_ap", 8_097_039, 768, True),
    ("tf_efficientdet_d3_ap", 12_032_296, 896, True),
    ("tf_efficientdet_d4_ap", 20_723_675, 1024, True),
    ("tf_efficientdet_d5_ap", 33_653_315, 1280, True),
    ("tf_efficientdet_lite0", 3_243_470, 320, True),
    ("tf_efficientdet_lite1", 4_248_318, 384, True),
    ("tf_efficientdet_lite2", 5_252_334, 448, True),
    ("tf_efficientdet_lite3", 8_350_862, 512, True),
    ("tf_efficientdet_lite3x", 9_280_862, 640, True),
    ("tf_efficientdet_lite4", 15_130_894, 640, True),
)


@dataclass(frozen=True, kw_only=True)
class EfficientDetFamily(Family):
    """Networks of effdet in a detector of ours, `_effdet_module`."""

    def build_model(
        self, card: ModelCard, options: BuildOptions, weights_base_url: str | None = None
    ) -> BuiltModel:
        """Classes and size set, weights in, parts named."""
        from detscope.zoo.weights import PublishedWeights, find_weights, load_into, seed_weights

        if options.trainable_layers is not None:
            raise UsageError(f"{card.name} does not know trainable_layers", "leave trainable_layers out")
        size = options.image_size
        if size is not None and size % _SIZE_STEP:  # its pyramid wants whole pixels on the backbone's levels
            nearest = max(1, round(size / _SIZE_STEP)) * _SIZE_STEP
            raise UsageError(
                f"image_size = {size}: {card.name} needs a multiple of {_SIZE_STEP}", f"try {nearest}"
            )
        config = find_config(card.name) if card is not self.tiny else _find_tiny_config(card.name)
        url = "" if card is self.tiny else str(config.url or "")
        found = find_weights(options, card.name, PublishedWeights(url) if url else None, weights_base_url)
        from detscope.zoo.families._effdet_module import EfficientDetector  # slow, and draws no numbers here

        if options.num_classes is not None:
            config.num_classes = options.num_classes - 1  # effdet does not count the background
        if size is not None:
            config.image_size = (size, size)
        with seed_weights(options.seed), quiet_effdet():
            module = EfficientDetector(config)
        if found.state is not None:
            named = {key if key.startswith("model.") else f"model.{key}": v for key, v in found.state.items()}
            found = replace(found, state=named)
        return self.describe_model(card, module, load_into(module, found, card.name, self.class_heads))

    def trace_outputs(self, module: Any, images: Tensor) -> list[Tensor]:
        """Those of both nets, on all levels."""
        return [output for levels in module.model(images) for output in levels]


@contextmanager
def quiet_effdet() -> Iterator[None]:
    """effdet and timm script functions while they are imported, which torch announces as deprecated."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", message=r".*torch\.jit\.\w+.* is deprecated", category=category)
        yield


def find_config(name: str) -> Any:
    """effdet's own settings of a model, free to be changed."""
    with quiet_effdet():
        from effdet import get_efficientdet_config

        return get_efficientdet_config(name)


def _find_tiny_config(name: str) -> Any:
    """Two narrow BiFPN cells on TinyNet-E, a shrunk EfficientNet, levels 3 to 6."""
    config = find_config("efficientdet_lite0")
    config.name = name
    config.backbone_name, config.backbone_args = "tinynet_e", {}
    config.image_size = (_TINY_SIZE, _TINY_SIZE)
    config.num_classes = TINY_CLASSES - 1
    config.max_level, config.num_levels = 6, 4
    config.anchor_scale = 2.0
    config.fpn_channels, config.fpn_cell_repeats, config.box_class_repeats = 32, 2, 2
    config.max_detection_points = 1000
    return config


def _make_card(name: str, parameters: int, size: int, has_weights: bool) -> ModelCard:
    return ModelCard(
        name,
        "efficientdet",
        "effdet",
        parameters,
        str(size),
        "none" if not has_weights else _PORTED if name.startswith("tf_") else _LICENCE,
        note="" if has_weights else "effdet offers no weights for it; the tf_ variant has some",
        # The deepest pyramid level has stride 128, that of D7x 256: inputs of that size leave one pixel.
        single_pixel_size=256 if name.endswith("d7x") else 128,
        recipe=_RECIPE,
    )


PART = EfficientDetFamily(
    name="efficientdet",
    order=80,
    cards=tuple(_make_card(*row) for row in _MODELS),
    tiny=ModelCard(
        "tiny_efficientdet",
        "efficientdet",
        "tiny",
        600_472,
        str(_TINY_SIZE),
        "none",
        single_pixel_size=64,
        recipe=_TINY_RECIPE,
    ),
    stages=name_stages(
        ("preprocess", "preprocess()"),
        ("backbone", "model.backbone"),
        ("bifpn", "model.fpn"),
        ("class_net", "model.class_net"),
        ("box_net", "model.box_net"),
        ("loss", "compute_loss()"),
        ("loss.assign", "assign_anchors()"),
        ("postprocess", "postprocess()"),
        ("postprocess.nms", "suppress()"),
    ),
    observers=(Observer("preprocess()", count_pixels), Observer("postprocess()", count_detections)),
    class_heads=("model.class_net.predict.",),
    detector_classes=("detscope.zoo.families._effdet_module:EfficientDetector",),
    tracing_size=None,
)
