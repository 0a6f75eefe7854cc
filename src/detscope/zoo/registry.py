"""Names to models and models to families. Nothing here imports torch."""

from __future__ import annotations

import difflib
import fnmatch
from dataclasses import replace
from typing import TYPE_CHECKING

from detscope.errors import UsageError
from detscope.parts import find_part, parts_of
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Observer, Stage, place_target
from detscope.zoo.family import UNKNOWN, Family

if TYPE_CHECKING:
    from torch import nn

_DEEPEST = 4  # levels at which a detector may lie inside of a model


def list_families() -> tuple[Family, ...]:
    """Ours and those of other packages."""
    return parts_of("families", Family)


def get_family(name: str) -> Family:
    """A family by its name; the one that knows nothing where there is none, as of a user's model."""
    return find_part("families", Family, name) or UNKNOWN


def recognise_family(module: nn.Module) -> Family:
    """The family of a model that is already there, whoever built it: by the nearest class that one knows."""
    by_class: dict[str, list[Family]] = {}
    for family in list_families():
        for name in family.detector_classes:
            by_class.setdefault(name, []).append(family)
    for kind in type(module).__mro__:
        for family in by_class.get(f"{kind.__module__}:{kind.__qualname__}", ()):
            if family.is_member(module):
                return family
    return UNKNOWN


def recognise_parts(module: nn.Module) -> tuple[str, tuple[Stage, ...], tuple[Observer, ...]]:
    """Family, stages and observers: of the model, of a detector of a known family inside, or by structure."""
    level: list[tuple[str, nn.Module]] = [("", module)]
    for _ in range(_DEEPEST):
        for path, inner in level:
            family = recognise_family(inner)
            if family is not UNKNOWN:
                stages, observers = family.find_stages(inner), family.find_observers(inner)
                return (
                    family.name,
                    tuple(one.place_below(path) for one in stages),
                    tuple(replace(one, target=place_target(one.target, path)) for one in observers),
                )
        level = [
            (f"{path}.{name}" if path else name, child)
            for path, inner in level
            for name, child in inner.named_children()
        ]
    return UNKNOWN.name, UNKNOWN.find_stages(module), ()


def list_stage_words() -> frozenset[str]:
    """Outermost stages of all families: what foreign code may call its parts too."""
    names = (stage.name.partition(".")[0] for family in list_families() for stage in family.stages)
    return frozenset(name for name in names if name)


def list_cards(glob: str | None = None) -> list[ModelCard]:
    """Cards of all models whose name or family matches `glob`; the tiny ones come last."""
    families = list_families()
    cards = [card for family in families for card in family.cards]
    cards += [family.tiny for family in families if family.tiny is not None]
    if glob is None:
        return cards
    wanted = glob.lower()
    return [card for card in cards if any(fnmatch.fnmatchcase(t, wanted) for t in (card.name, card.family))]


def get_card(name: str) -> ModelCard:
    """The card of a model: a name, a short name, or `file.py:factory` / `package.module:factory`."""
    if ":" in name:
        from detscope.zoo import user

        return user.describe_spec(name)
    cards: dict[str, ModelCard] = {}
    short_names: dict[str, str] = {}
    for family in list_families():  # ours come first: another package's model never takes the place of one
        cards = {card.name: card for card in family.list_cards()} | cards
        short_names = {**family.short_names, **short_names}
    found = cards.get(short_names.get(name, name))
    if found is None:
        close = difflib.get_close_matches(name, [*cards, *short_names], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "file.py:factory names one of your own;"
        raise UsageError(f"no model named {name!r}", f"{hint} `detscope models` lists all")
    return found


def build_model(name: str, options: BuildOptions | None = None) -> BuiltModel:
    """Build a model with its weights; the same seed gives the same random weights."""
    options = options or BuildOptions()
    if options.num_classes is not None and options.num_classes < 2:
        raise UsageError(
            f"num_classes = {options.num_classes}: a detector needs background and at least one class",
            "set num_classes to 2 or more",
        )
    if ":" in name:
        from detscope.zoo import user

        return user.build_own(name, options)
    card = get_card(name)
    return get_family(card.family).build_model(card, options)


def check_trainable(card: ModelCard, batch_size: int, image_size: int | None = None) -> None:
    """Refuse, before anything is downloaded, a batch that this model cannot train with."""
    needed = card.min_train_batch
    if image_size is not None and image_size <= card.single_pixel_size:
        needed = max(needed, 2)
    if batch_size < needed:
        raise UsageError(
            f"{card.name} cannot train with batch size {batch_size}: "
            "its smallest feature map is one pixel, and batch norm needs more than one value per channel",
            f"use a batch size of at least {needed}, and at least as many images",
        )
