"""What the families of transformers share: built from a configuration, nothing is fetched from a hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from detscope.errors import InputError, UsageError
from detscope.extras import require_package
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Observer, Recipe, Stage
from detscope.zoo.families._transformers_stages import Layout, find_network_stages, put_in_order
from detscope.zoo.family import Family, choose_stages, count_detections, count_pixels, name_stages

if TYPE_CHECKING:
    from torch import Tensor, nn

NETWORK = "network."  # where the model of transformers is in ours
DETECTOR = "detscope.zoo.transformers_detector:TransformersDetector"
DETECTOR_STAGES = name_stages(
    ("preprocess", "preprocess()"),
    ("loss", "name_losses()"),
    ("postprocess", "postprocess()"),
    ("postprocess.top_k", "pick_best()"),
)
_FROM_SCRATCH = "trained from scratch: all backbone layers train, with live batch norm"
_SAME_LOAD = "what is found means nothing, the network's load is that of a trained model"
_NO_HUB = "weights are random or from a file, nothing is fetched from a hub"
_PRUNED = "prune cuts its backbone alone"
_NOT_PRUNED = "it cannot be pruned"


@dataclass(frozen=True)
class Framing:
    """How images become a batch, and outputs detections."""

    size: int  # of the square, or of the shorter side
    longest: int | None = None  # of the longer side where the aspect is kept; None: a square, stretched
    normalised: bool = True  # by ImageNet's mean and deviation
    sees_mask: bool = True  # of padding; one that does not has boxes relative to the padded batch
    first_class: int = 0  # what its class 0 is called here: 0 is background, which it has a place for, or 1
    has_no_object: bool = False  # a softmax with "no object" as last class; else a sigmoid per class
    step: int = 1  # sizes are multiples of it
    smallest: int = 32  # size; a smaller one has fewer places than there are queries to select

    def fit_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image in the batch."""
        if self.longest is None:
            return self.size, self.size
        scale = min(self.size / min(height, width), self.longest / max(height, width))
        return max(1, int(height * scale)), max(1, int(width * scale))

    def with_size(self, size: int) -> Framing:
        """The same for another size; the longer side keeps its ratio to it."""
        longest = None if self.longest is None else round(size * self.longest / self.size)
        return replace(self, size=size, longest=longest)


@dataclass(frozen=True)
class Variant:
    """One model of transformers: what is not as its configuration says by itself."""

    network: str  # class in transformers
    framing: Framing
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TransformersFamily(Family):
    """A family whose networks transformers builds, each in a detector of ours."""

    variants: Mapping[str, Variant]  # by card
    name_parts: Callable[[Layout], None]  # stages of its networks
    detector_classes: tuple[str, ...] = (DETECTOR,)  # a family adds those of transformers
    stages: tuple[Stage, ...] = DETECTOR_STAGES
    observers: tuple[Observer, ...] = (
        Observer("preprocess()", count_pixels),
        Observer("postprocess()", count_detections),
    )

    def is_member(self, module: nn.Module) -> bool:
        """All families share our detector: the class of its network decides."""
        if not is_detector(module):
            return True
        network = type(module.network).__name__
        return any(variant.network == network for variant in self.variants.values())

    def find_stages(self, module: nn.Module) -> tuple[Stage, ...]:
        """Those of a network by itself, as others use it, or of one in our detector."""
        if type(module).__name__ != DETECTOR.partition(":")[2]:
            return choose_stages(module, put_in_order(find_network_stages(module, self.name_parts)))
        found = find_network_stages(module.get_submodule(NETWORK[:-1]), self.name_parts)
        stages = (*self.stages, *(stage.place_below(NETWORK[:-1]) for stage in found))
        return choose_stages(module, put_in_order(stages))

    def build_model(self, card: ModelCard, options: BuildOptions) -> BuiltModel:
        """Classes and size set, weights in, parts named."""
        require_package("transformers")
        from detscope.zoo.weights import find_weights, load_into, seed_weights

        self._check_options(card, options)
        found = find_weights(options, card.name, published=None)
        if found.state is None:
            why = "as asked" if options.weights == "none" else "nothing is fetched from a hub"
            found = replace(found, note=f"random weights ({why}): {_SAME_LOAD}")
        from detscope.zoo.transformers_detector import TransformersDetector  # slow

        variant = self.variants[card.name]
        classes = options.num_classes or self.count_classes(card)
        with seed_weights(options.seed):
            network = make_network(variant, classes)
        framing = variant.framing
        module = TransformersDetector(
            network, framing if options.image_size is None else framing.with_size(options.image_size)
        )
        state = found.state
        if state is not None:
            named = (key if key.startswith(NETWORK) else NETWORK + key for key in state)
            found = replace(found, state=dict(zip(named, state.values(), strict=True)))
        # frozen batch norm keeps no counters: a file without them was made by a model with frozen norms
        backbone = [key for key in state or () if ".backbone." in key]
        is_free = state is None or any(key.endswith("num_batches_tracked") for key in backbone)
        is_new = is_free and free_backbone(module) and state is None and card is not self.tiny
        notes = (_FROM_SCRATCH,) if is_new else ()
        return self.describe_model(card, module, load_into(module, found, card.name, self.class_heads), notes)

    def trace_outputs(self, module: Any, images: Tensor) -> list[Tensor]:
        """Projected feature maps of the backbone: other channels belong to heads of attention."""
        model = getattr(getattr(module, "network", module), "model", None)
        names = ("input_projection", "input_proj", "encoder_input_proj")
        found = next((getattr(model, name) for name in names if hasattr(model, name)), None)
        if model is None or found is None:
            raise InputError(
                f"{type(module).__name__} cannot be pruned: its backbone is a transformer",
                "of the DETRs, those with a convolutional backbone can be pruned",
            )
        from torch import nn

        projections = list(found) if isinstance(found, nn.ModuleList) else [found]
        features = model.backbone.model(images)
        maps = list(features.feature_maps if hasattr(features, "feature_maps") else features)
        maps = maps[-len(projections) :]
        # a projection more than there are maps makes another level of the last one
        return [project(maps[min(index, len(maps) - 1)]) for index, project in enumerate(projections)]

    def _check_options(self, card: ModelCard, options: BuildOptions) -> None:
        if options.trainable_layers is not None:
            raise UsageError(f"{card.name} does not know trainable_layers", "leave trainable_layers out")
        if options.weights == "coco":
            raise UsageError(
                f"COCO weights of {card.name} are on a hub, and nothing is fetched from one",
                "use --weights none, or the path of a model.safetensors you have",
            )
        size, framing = options.image_size, self.variants[card.name].framing
        if size is not None and size < framing.smallest:
            raise UsageError(
                f"image_size = {size}: {card.name} works from {framing.smallest} pixels on",
                f"use {framing.smallest} or more",
            )
        if size is not None and size % framing.step:
            nearest = max(1, round(size / framing.step)) * framing.step
            raise UsageError(
                f"image_size = {size}: {card.name} needs a multiple of {framing.step}", f"try {nearest}"
            )


def is_detector(module: nn.Module) -> bool:
    """Whether it is a detector of ours, with a network of transformers inside; imports nothing."""
    return any(f"{kind.__module__}:{kind.__qualname__}" == DETECTOR for kind in type(module).__mro__)


def make_network(variant: Variant, classes: int) -> nn.Module:
    """The network of transformers with random weights; `classes` count the background."""
    import transformers

    kind = getattr(transformers, variant.network)
    labels = classes - variant.framing.first_class
    network: nn.Module = kind(kind.config_class(**variant.configuration, num_labels=labels))
    return network


def free_backbone(module: nn.Module) -> bool:
    """Let all layers train, with batch norm that follows the data: nothing is there yet to be kept."""
    from torch import nn

    for path, parameter in module.named_parameters():
        if ".backbone." in path:
            parameter.requires_grad_(True)
    frozen = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child).__name__.endswith("FrozenBatchNorm2d")
    ]
    for parent, name, child in frozen:
        setattr(parent, name, nn.BatchNorm2d(cast("Tensor", child.weight).numel()))
    return bool(frozen)


def hub_card(
    family: str,
    name: str,
    parameters: int,
    input_size: str,
    recipe: Recipe,
    *,
    has_convolutions: bool = True,
) -> ModelCard:
    """A model whose weights are on a hub; parameters as it is built here, with batch norm that trains."""
    note = f"{_NO_HUB}; {_PRUNED if has_convolutions else _NOT_PRUNED}"
    return ModelCard(name, family, "transformers", parameters, input_size, "none", recipe=recipe, note=note)


def tiny_detr_card(family: str, name: str, parameters: int, input_size: str, recipe: Recipe) -> ModelCard:
    """The tiny variant of a family."""
    return ModelCard(name, family, "tiny", parameters, input_size, "none", recipe=recipe, note=_PRUNED)
