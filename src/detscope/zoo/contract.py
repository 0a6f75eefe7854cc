"""The contract between a model and everybody else: what a zoo entry says and what building gives.

A detector is a plain `nn.Module`: `module(images, targets)` takes a list of float CHW images in
[0, 1] and a list of target dicts (`boxes` xyxy, `labels` from 1, ...) and gives a dict of losses
in training mode, and `module(images)` a list of detection dicts in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


BEGIN = "(begin)"


@dataclass(frozen=True)
class Stage:
    """A named part of a detector: where it happens in the code.

    `name` is dotted where a stage is part of another (`roi_heads.pool`); with a leading dot it is part of
    whichever stage is running (`.nms` of proposals and of postprocessing). `target` is one of
    - a module path from the root: `backbone.body`
    - a method of a module: `roi_heads.postprocess_detections()`; of the root: `compute_loss()`
    - a function of a library: `torchvision.models.detection.roi_heads:fastrcnn_loss`, wherever a loaded
      module holds it under this name; heard while a model, or a method of the next kind, runs
    - a method of any object of a class: `some.library.matcher:Matcher.forward`; heard anywhere in a step,
      for objects that hang on no model (matchers, losses, averages of weights)
    A library that is not loaded is not imported: what it holds is then no target of this model.

    `after` is another target, which `target` calls: the stage is then what `target` does itself once that has
    ended, until the next call that is named so begins or `target` ends; after `BEGIN`, what it begins with.
    Several stages of one target after the same other one are those after its first call, its second and so
    on, the last for all further ones.
    A stage without a name is none: what its target returns belongs, backward too, to the stage that runs.
    """

    name: str
    target: str
    after: str = ""

    def place_below(self, path: str) -> Stage:
        """The same stage where the model is a module of another, at this path."""
        after = place_target(self.after, path) if self.after else ""
        return replace(self, target=place_target(self.target, path), after=after)


def place_target(target: str, path: str) -> str:
    """A target of a model that is a module of another, at this path."""
    if ":" in target or target == BEGIN or not path:
        return target
    return f"{path}.{target}" if target else path


@dataclass(frozen=True)
class Observer:
    """Reads counts (proposals, padded pixels, ...) off the output of a target; shapes only, no sync."""

    target: str
    read: Callable[[Any], Mapping[str, int]]


@dataclass(frozen=True)
class Recipe:
    """How a family is trained when the user does not say it; the names are those of `[training]`."""

    optimizer: str = "sgd"
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    lr_warmup_steps: int = 100
    clip_gradients: float | None = None
    batch_size: int | None = None  # None: as everywhere


@dataclass(frozen=True)
class ModelCard:
    """What can be said of a model before it is built; needs no torch."""

    name: str
    family: str
    source: str  # "torchvision", "effdet", "transformers", "tiny" or "user"
    parameters: int | None  # with its default number of classes; None where not known
    input_size: str  # "800-1333", "512"; the size the model works at, in pixels
    weights_licence: str  # licence and origin of downloadable weights, or "none"
    min_train_batch: int = 1
    needs: tuple[str, ...] = ()  # extra targets: "masks", "keypoints"
    note: str = ""
    single_pixel_size: int = 32  # up to this input size a normalised feature map is one pixel
    recipe: Recipe = Recipe()  # of training for real


@dataclass(frozen=True)
class BuildOptions:
    """What the caller wants of a model."""

    num_classes: int | None = None  # with background; None keeps the model's own
    weights: str = "auto"  # "auto", "coco", "none" or a file
    image_size: int | None = None  # overrides the model's own input size
    trainable_layers: int | None = None  # backbone stages left trainable, where the family knows it
    seed: int = 0
    cache_dir: str | None = None


@dataclass(frozen=True)
class WeightsUsed:
    """Which weights the model really has."""

    kind: str  # "random", "coco", "file"; "factory" where a user's factory made them
    source: str  # file name or publisher's name; "" for random
    note: str  # one sentence for every view; for random: that proposal and NMS load differ
    replaced: tuple[str, ...] = ()  # heads that were newly made because the class count differs


@dataclass(frozen=True)
class BuiltModel:
    """A model ready to run, with its parts named."""

    module: nn.Module
    card: ModelCard
    stages: tuple[Stage, ...]
    observers: tuple[Observer, ...]
    weights: WeightsUsed
    notes: tuple[str, ...] = field(default=())
