"""EfficientDet D0-D7x and lite by effdet, with the list-of-images contract of all other detectors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from detscope.errors import UsageError
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Recipe
from detscope.zoo.registry import register
from detscope.zoo.weights.download import Published

if TYPE_CHECKING:
    from detscope.zoo.weights.choice import FoundWeights

_LICENCE = "Apache-2.0 (effdet); trained on COCO 2017, whose terms apply"
_PORTED = "Apache-2.0 (Google AutoML, ported by effdet); trained on COCO 2017, whose terms apply"
_SIZE_STEP = 32  # the deepest stride of the backbone
CLASS_HEADS = ("model.class_net.predict.",)
_RECIPE = Recipe("adamw", 2e-4, 4e-5, clip_gradients=10.0, batch_size=4)

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


def _card(name: str, parameters: int, size: int, has_weights: bool) -> ModelCard:
    licence = "none" if not has_weights else _PORTED if name.startswith("tf_") else _LICENCE
    # The deepest pyramid level has stride 128, that of D7x 256: inputs of that size leave one pixel.
    single_pixel_size = 256 if name.endswith("d7x") else 128
    return ModelCard(
        name,
        "efficientdet",
        "effdet",
        parameters,
        str(size),
        licence,
        note="" if has_weights else "effdet offers no weights for it; the tf_ variant has some",
        single_pixel_size=single_pixel_size,
        recipe=_RECIPE,
    )


@contextmanager
def quiet_effdet() -> Iterator[None]:
    """effdet and timm script functions while they are imported, which torch announces as deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r".*torch\.jit\.\w+.* is deprecated", category=FutureWarning
        )
        warnings.filterwarnings(
            "ignore", message=r".*torch\.jit\.\w+.* is deprecated", category=DeprecationWarning
        )
        yield


@register([_card(*row) for row in _MODELS])
def build_efficientdet(
    card: ModelCard, options: BuildOptions, weights_base_url: str | None = None
) -> BuiltModel:
    """Build an EfficientDet and put its weights in."""
    from detscope.zoo.weights.choice import find_weights

    check_options(card, options)
    config = effdet_config(card.name)
    url = str(config.url or "")
    found = find_weights(options, card.name, Published(url) if url else None, weights_base_url)
    return finish(card, config, options, found)


def effdet_config(name: str) -> Any:
    """effdet's own settings of a model, free to be changed."""
    with quiet_effdet():
        from effdet import get_efficientdet_config

        return get_efficientdet_config(name)


def check_options(card: ModelCard, options: BuildOptions) -> None:
    """Refuse what EfficientDet cannot do; its pyramid wants whole pixels on the backbone's levels."""
    if options.trainable_layers is not None:
        raise UsageError(f"{card.name} does not know trainable_layers", "leave trainable_layers out")
    image_size = options.image_size
    if image_size is not None and image_size % _SIZE_STEP:
        nearest = max(1, round(image_size / _SIZE_STEP)) * _SIZE_STEP
        raise UsageError(
            f"image_size = {image_size}: {card.name} needs a multiple of {_SIZE_STEP}", f"try {nearest}"
        )


def finish(card: ModelCard, config: Any, options: BuildOptions, found: FoundWeights) -> BuiltModel:
    """From settings to a built model: classes and size set, weights in, parts named."""
    from detscope.zoo.families._effdet_module import EfficientDetector
    from detscope.zoo.observers import observers_for
    from detscope.zoo.seeding import seeded
    from detscope.zoo.stages import stages_for
    from detscope.zoo.weights.choice import FoundWeights, load_into

    if options.num_classes is not None:
        config.num_classes = options.num_classes - 1  # effdet does not count the background
    if options.image_size is not None:
        config.image_size = (options.image_size, options.image_size)
    with seeded(options.seed), quiet_effdet():
        module = EfficientDetector(config)
    if found.state is not None:
        named = {key if key.startswith("model.") else f"model.{key}": v for key, v in found.state.items()}
        found = FoundWeights(found.kind, found.source, found.note, named)
    used = load_into(module, found, card.name, CLASS_HEADS)
    return BuiltModel(
        module=module,
        card=card,
        stages=stages_for(card.family, module),
        observers=observers_for(card.family, module),
        weights=used,
    )
