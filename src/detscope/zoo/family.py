"""A family of detectors: everything that the rest of the package asks of one, filled in by one file.

A family of ours is a file in `zoo/families/`; one of another package is named by an entry point of the group
`detscope.families` (see `detscope.parts`, and `examples/plugin/` for a whole one).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detscope.errors import InputError
from detscope.zoo.contract import BEGIN, BuildOptions, BuiltModel, ModelCard, Observer, Stage, WeightsUsed
from detscope.zoo.structure import find_structure

if TYPE_CHECKING:
    from torch import Tensor, nn

COCO_CLASSES = 91  # with background; COCO's own ids, which have gaps
TINY_CLASSES = 5  # with background
USUAL_SIZE = 224  # pixels of images for a network that does not say what it wants


@dataclass(frozen=True, kw_only=True)
class Family:
    """Fields say what is known before a model is built; methods, of which a family overrides some, the rest.

    Nothing here may import torch before a method is called: listing models has to be quick.
    """

    name: str
    order: int = 1000  # among the families
    cards: tuple[ModelCard, ...] = ()
    tiny: ModelCard | None = None  # the same architecture, small: trains on a CPU in seconds
    short_names: Mapping[str, str] = field(default_factory=dict)  # to names of cards
    # Several targets may share a name: their times belong together. Some parents (`roi_heads.mask`) exist by
    # name only, as the sum of their parts. Without any, stages follow from the model's structure.
    stages: tuple[Stage, ...] = ()
    observers: tuple[Observer, ...] = ()
    class_heads: tuple[str, ...] = ()  # prefixes of layers whose shape follows the number of classes
    class_count: int = COCO_CLASSES  # of the cards' models, with background
    # "package.module:Class": whose objects, in anybody's code, are of this family
    detector_classes: tuple[str, ...] = ()
    tracing_size: int | None = 256  # pixels that suffice to see how channels flow; None: the model's own size

    def __post_init__(self) -> None:
        for card in self.list_cards():
            if card.family != self.name:
                raise ValueError(f"the card {card.name} says {card.family!r}, its family is {self.name!r}")

    def list_cards(self) -> tuple[ModelCard, ...]:
        """All its models, the tiny one last."""
        return self.cards if self.tiny is None else (*self.cards, self.tiny)

    def build_model(self, card: ModelCard, options: BuildOptions) -> BuiltModel:
        """Build one of the family's models; `describe_model` makes the answer of a module."""
        raise NotImplementedError(f"{self.name} does not say how {card.name} is built with {options}")

    def is_member(self, module: nn.Module) -> bool:  # noqa: ARG002
        """Whether an object of `detector_classes` is of this family: where two share a class."""
        return True

    def trace_outputs(self, module: Any, images: Tensor) -> list[Tensor]:  # noqa: ARG002
        """Outputs of all layers that train, without boxes or selection: they show how channels flow."""
        raise InputError(
            f"{type(module).__name__} cannot be pruned: its family is not known, nor where its outputs are",
            "detectors of torchvision's families and EfficientDet can be pruned",
        )

    def find_image_size(self, module: Any) -> int:
        """The side of the images a detector wants; a usual one where a user's does not say it as ours do."""
        transform: Any = getattr(module, "transform", None)
        if not all(hasattr(transform, name) for name in ("fixed_size", "min_size")):
            own = getattr(module, "image_size", None)
            return own if isinstance(own, int) and own > 0 else USUAL_SIZE
        return int(transform.fixed_size[0] if transform.fixed_size is not None else max(transform.min_size))

    def stop_resizing(self, module: Any) -> bool:
        """Let images train in the sizes they come in, evaluation resizes as ever; False where it cannot."""
        transform = getattr(module, "transform", None)
        if not hasattr(transform, "_skip_resize") or getattr(transform, "fixed_size", None) is not None:
            return False
        vars(transform)["_skip_resize"] = True  # torchvision's own switch, looked at in training only
        return True

    def count_classes(self, card: ModelCard) -> int:
        """Classes of a model that was built without saying how many, with background."""
        return TINY_CLASSES if self.tiny is not None and card.name == self.tiny.name else self.class_count

    def find_stages(self, module: nn.Module) -> tuple[Stage, ...]:
        """The family's stages that exist on this model."""
        if not self.stages:
            return find_structure(module)
        return choose_stages(module, self.stages)

    def find_observers(self, module: nn.Module) -> tuple[Observer, ...]:
        """The family's observers whose target exists on this model."""
        return tuple(one for one in self.observers if has_target(module, one.target))

    def describe_model(
        self, card: ModelCard, module: nn.Module, weights: WeightsUsed, notes: tuple[str, ...] = ()
    ) -> BuiltModel:
        """A built module with everything a caller needs beside it."""
        return BuiltModel(module, card, self.find_stages(module), self.find_observers(module), weights, notes)


UNKNOWN = Family(name="user")  # what can be said of a model nobody described


def has_target(module: nn.Module, target: str) -> bool:
    """Whether a stage's or an observer's target exists on this model."""
    library, colon, path = target.rpartition(":")
    found: Any = sys.modules.get(library) if colon else module
    for part in path.removesuffix("()").split("."):
        found = getattr(found, part, None)
    if colon or target.endswith("()"):
        return callable(found)
    from torch import nn

    return isinstance(found, nn.Module)


def choose_stages(module: nn.Module, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Those whose targets exist on this model."""
    known: dict[str, bool] = {}
    for stage in stages:
        for target in (stage.target, stage.after):
            known[target] = known.get(target) or target in ("", BEGIN) or has_target(module, target)
    return tuple(stage for stage in stages if known[stage.target] and known[stage.after])


def name_stages(*pairs: tuple[str, str]) -> tuple[Stage, ...]:
    """Stages from pairs of name and target."""
    return tuple(Stage(name, target) for name, target in pairs)


def count_pixels(images: Any) -> Mapping[str, int]:
    """For an observer of a padded batch (`tensors`) that knows the sizes before padding (`image_sizes`)."""
    batch, _, height, width = images.tensors.shape
    return {
        "padded_pixels": int(batch * height * width),
        "network_pixels": sum(int(h) * int(w) for h, w in images.image_sizes),
    }


def count_detections(output: Any) -> Mapping[str, int]:
    """For an observer of what a detector returns: a dict with boxes per image."""
    # In training the R-CNNs call postprocess with an empty list: no count, which is not a count of 0.
    return {"detections": sum(found["boxes"].shape[0] for found in output)} if output else {}
