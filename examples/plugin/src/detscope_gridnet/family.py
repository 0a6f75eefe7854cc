"""What detscope asks of GridNet. Nothing here imports torch before a model is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.errors import UsageError
from detscope.zoo import BuildOptions, BuiltModel, Family, ModelCard, Observer, Recipe, Stage

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = {"gridnet_s": 64, "tiny_gridnet": 8}


@dataclass(frozen=True, kw_only=True)
class GridFamily(Family):
    """How models of the family are built and cut."""

    def build_model(self, card: ModelCard, options: BuildOptions) -> BuiltModel:
        """Random weights, or those of a file; nobody has published any."""
        from detscope.zoo.weights import find_weights, load_into, seed_weights
        from detscope_gridnet.detector import GridDetector

        if options.trainable_layers is not None:
            raise UsageError(f"{card.name} does not know trainable_layers", "leave trainable_layers out")
        found = find_weights(options, card.name, published=None)
        classes = options.num_classes or self.count_classes(card)
        with seed_weights(options.seed):
            module = GridDetector(classes, WIDTHS[card.name], options.image_size or int(card.input_size))
        return self.describe_model(card, module, load_into(module, found, card.name, self.class_heads))

    def trace_outputs(self, module: Any, images: Tensor) -> list[Tensor]:
        """What pruning follows channels through."""
        return [module.head(module.mixer(module.backbone(images)))]


PART = GridFamily(
    name="gridnet",
    cards=(
        ModelCard("gridnet_s", "gridnet", "gridnet", 2_166_687, "256", "none", recipe=Recipe("adamw", 1e-3)),
    ),
    tiny=ModelCard("tiny_gridnet", "gridnet", "tiny", 34_225, "128", "none", recipe=Recipe("adamw", 2e-3)),
    stages=(Stage("backbone", "backbone"), Stage("mixer", "mixer"), Stage("head", "head")),
    observers=(
        Observer("find_objects()", lambda found: {"detections": sum(len(one["boxes"]) for one in found)}),
    ),
    class_heads=("head.",),
    detector_classes=("detscope_gridnet.detector:GridDetector",),
)
