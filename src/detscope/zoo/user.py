"""The user's own model: `path/to/file.py:factory` or `package.module:factory`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.errors import OwnCodeError, UsageError
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Stage, WeightsUsed
from detscope.zoo.outputs import kind_of
from detscope.zoo.user_import import import_named, imports_possible, own_code_failed

if TYPE_CHECKING:
    from torch import nn

_FORM = "path/to/file.py:factory or package.module:factory"
_RESULTS = "return an nn.Module, a (module, stages) pair, or a detscope BuiltModel"
_NOTE = "weights as the factory made them; if random, proposal and NMS load differ from a trained model's"


def card_of(spec: str) -> ModelCard:
    """What can be said of a user's model before its code runs; a wrong path is an error already here."""
    source, _ = _split(spec)
    if _is_file(source) and not Path(source).is_file():
        raise UsageError(f"model {spec}: there is no file {source}", f"expected {_FORM}")
    return ModelCard(spec, "user", "user", None, "its own", "none")


def build(spec: str, options: BuildOptions) -> BuiltModel:
    """Import, call the factory, and describe what it gave."""
    from detscope.zoo.seeding import seeded
    from detscope.zoo.weights.choice import check_choice

    card = card_of(spec)
    _check_options(spec, options)
    check_choice(options.weights, spec, has_published=False)
    source, name = _split(spec)
    with imports_possible(Path(source) if _is_file(source) else None), seeded(options.seed):
        factory = _factory(import_named(spec, source, _is_file(source)), spec, name)
        made = _call(factory, spec, options)
    return _with_weights(_described(made, card), options)


def load(spec: str) -> None:
    """Import the user's code for what it registers, such as data sets."""
    source, _ = _split(spec)
    with imports_possible(Path(source) if _is_file(source) else None):
        import_named(spec, source, _is_file(source))


def _split(spec: str) -> tuple[str, str]:
    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise UsageError(f"model {spec!r} is not complete", f"expected {_FORM}")
    return source, name


def _is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source


def _check_options(spec: str, options: BuildOptions) -> None:
    for name in ("image_size", "trainable_layers"):
        if getattr(options, name) is not None:
            raise UsageError(f"{name} is not known for {spec}", "let the factory set it")


def _factory(module: Any, spec: str, name: str) -> Callable[..., Any]:
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        own = [key for key in public if getattr(vars(module)[key], "__module__", "") == module.__name__]
        raise UsageError(
            f"model {spec}: {module.__name__} has no {name!r}",
            f"it has: {', '.join(own[:8])}" if own else f"expected {_FORM}",
        )
    factory = getattr(module, name)
    if not callable(factory):
        raise UsageError(
            f"model {spec}: {name} is {kind_of(factory)} and cannot be called", "name a function or class"
        )
    return factory  # type: ignore[no-any-return]


def _call(factory: Callable[..., Any], spec: str, options: BuildOptions) -> Any:
    arguments: dict[str, Any] = {}
    if options.num_classes is not None and _accepts(factory, "num_classes"):
        arguments["num_classes"] = options.num_classes
    try:
        return factory(**arguments)
    except Exception as problem:
        raise own_code_failed(spec, "the factory", problem) from problem


def _accepts(factory: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    named = parameters.get(name)
    return takes_any or (named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY)


def _described(made: Any, card: ModelCard) -> BuiltModel:
    from torch import nn

    if isinstance(made, BuiltModel):
        return made
    module, stages = made, None
    if isinstance(made, tuple) and len(made) == 2:
        module, stages = made
    if not isinstance(module, nn.Module):
        raise OwnCodeError(f"model {card.name}: the factory returned {kind_of(made)}", _RESULTS)
    if stages is None and isinstance(getattr(module, "stages", None), Mapping):
        stages = module.stages
    return _built(module, stages, card)


def _built(module: nn.Module, stages: Any, card: ModelCard) -> BuiltModel:
    from detscope.zoo.observers import observers_for
    from detscope.zoo.stages import stages_for

    family = known_family(module)
    named = stages_for(family, module) if stages is None else _stages(stages, module, card.name)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    note = "" if family == "user" else f"recognised as {family}"
    return BuiltModel(
        module=module,
        card=replace(card, parameters=parameters, note=note),
        stages=named,
        observers=observers_for(family, module),
        weights=WeightsUsed("factory", card.name, _NOTE),
    )


def known_family(module: nn.Module) -> str:
    """The family of a torchvision detector or of our EfficientDet, else "user"."""
    if "torchvision.models.detection" in sys.modules:  # slow to import, and nobody has made one of its models
        family = _torchvision_family(module)
        if family is not None:
            return family
    efficientdet = sys.modules.get("detscope.zoo.families._effdet_module")  # effdet is slow to import
    if efficientdet is not None and isinstance(module, efficientdet.EfficientDetector):
        return "efficientdet"
    return "user"


def _torchvision_family(module: nn.Module) -> str | None:
    from torchvision.models import detection
    from torchvision.models.detection.ssd import SSD
    from torchvision.models.detection.ssdlite import SSDLiteHead

    if isinstance(module, SSD):
        return "ssdlite" if isinstance(module.head, SSDLiteHead) else "ssd"
    for family, kind in (
        ("maskrcnn", detection.MaskRCNN),
        ("keypointrcnn", detection.KeypointRCNN),
        ("fasterrcnn", detection.FasterRCNN),
        ("retinanet", detection.RetinaNet),
        ("fcos", detection.FCOS),
    ):
        if isinstance(module, kind):
            return family
    return None


def _stages(given: Any, module: nn.Module, spec: str) -> tuple[Stage, ...]:
    from detscope.zoo.stages import resolves

    if not isinstance(given, Mapping) or not all(
        isinstance(text, str) for pair in given.items() for text in pair
    ):
        raise UsageError(
            f"model {spec}: stages are {kind_of(given)}", 'expected {"name": "module.path", ...}'
        )
    named = tuple(Stage(name, target) for name, target in given.items())
    for stage in named:
        if not resolves(module, stage.target):
            children = ", ".join(name for name, _ in module.named_children())
            raise UsageError(
                f"model {spec}: stage {stage.name!r} names {stage.target!r}, which the model has not",
                f"a module path, or a method as path.name(); top-level modules are: {children}",
            )
    return named


def _with_weights(built: BuiltModel, options: BuildOptions) -> BuiltModel:
    from detscope.zoo.families._torchvision import CLASS_HEADS
    from detscope.zoo.weights.choice import find_weights, load_into

    if options.weights in ("auto", "none"):
        return built
    found = find_weights(options, built.card.name, published=None)
    heads = CLASS_HEADS.get(known_family(built.module), ())
    return replace(built, weights=load_into(built.module, found, built.card.name, heads))
