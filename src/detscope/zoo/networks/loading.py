"""From a name to a module with random weights of a seed; of either kind."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from detscope.errors import UsageError
from detscope.zoo.contract import BuildOptions
from detscope.zoo.networks.network import Base, Network

if TYPE_CHECKING:
    from torch import nn

CLASSIFIER_SIZE = 224
_OWN_SIZE = {"inception_v3": 299}  # its side classifier leaves no pixel of smaller images
_CLASSES = 1000
_DETECTOR_CLASSES = {"tiny": 5}  # with background; all others are made for COCO
_COCO_CLASSES = 91


def build_network(base: Base, *, seed: int = 0, image_size: int | None = None) -> Network:
    """Build a network; the same seed gives the same random weights."""
    if image_size is not None and image_size < 1:
        raise UsageError(f"image size {image_size}: expected at least one pixel", "leave it out for its own")
    if base.kind == "classifier":
        return _classifier(base, seed, image_size)
    return _detector(base, seed, image_size)


def _classifier(base: Base, seed: int, image_size: int | None) -> Network:
    from detscope.zoo.seeding import seeded

    with seeded(seed):
        module = _timm_module(base.name) if base.source == "timm" else _torchvision_module(base.name)
    size = image_size or _OWN_SIZE.get(base.name) or _fixed_timm_size(module) or CLASSIFIER_SIZE
    return Network(
        name=base.spelled,
        base=base,
        module=module,
        image_size=size,
        num_classes=_CLASSES if base.source == "torchvision" else int(getattr(module, "num_classes", 0)),
        parameters=parameter_count(module),
    )


def _torchvision_module(name: str) -> nn.Module:
    from torchvision.models import get_model_builder

    # both warn of a change of their default unless they are told
    more = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    module: nn.Module = get_model_builder(name)(weights=None, **more)
    return module


def _timm_module(name: str) -> nn.Module:
    from detscope.zoo.families.efficientdet import quiet_effdet

    with quiet_effdet(), warnings.catch_warnings():
        import timm

        module: nn.Module = timm.create_model(name, pretrained=False)
    if int(getattr(module, "num_classes", 0)) < 1:
        raise UsageError(f"timm/{name} gives no class scores", "choose a model that classifies")
    return module


def _fixed_timm_size(module: Any) -> int | None:
    """The input size of a timm model that takes no other."""
    settings = getattr(module, "pretrained_cfg", None) or {}
    size = settings.get("input_size")
    return int(size[-1]) if size and settings.get("fixed_input_size") else None


def _detector(base: Base, seed: int, image_size: int | None) -> Network:
    from detscope.zoo.registry import build

    built = build(base.name, BuildOptions(weights="none", image_size=image_size, seed=seed))
    card = built.card
    return Network(
        name=base.spelled,
        base=base,
        module=built.module,
        image_size=image_size or _own_size(built.module),
        num_classes=_DETECTOR_CLASSES.get(card.source, 2 if base.source == "user" else _COCO_CLASSES),
        parameters=parameter_count(built.module),
        min_train_batch=card.min_train_batch,
        needs=card.needs,
    )


def _own_size(module: Any) -> int:
    """The side of the images a detector wants; a usual one where a user's does not say it as ours do."""
    transform: Any = getattr(module, "transform", None)
    if not all(hasattr(transform, name) for name in ("fixed_size", "min_size")):
        own = getattr(module, "image_size", None)
        return own if isinstance(own, int) and own > 0 else CLASSIFIER_SIZE
    if transform.fixed_size is not None:
        return int(transform.fixed_size[0])
    return int(max(transform.min_size))


def parameter_count(module: nn.Module) -> int:
    """Parameters, each counted once."""
    return sum(parameter.numel() for parameter in module.parameters())
