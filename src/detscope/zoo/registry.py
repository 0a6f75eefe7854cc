"""Names to models: register by decorator, list by glob, get by name. Nothing here imports torch."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detscope.errors import UsageError
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard

Builder = Callable[[ModelCard, BuildOptions], BuiltModel]

# A new source of models is one new file and one line here.
_SOURCES = ("detscope.zoo.families._torchvision", "detscope.zoo.families.efficientdet", "detscope.zoo.tiny")


@dataclass(frozen=True)
class _Entry:
    card: ModelCard
    builder: Builder


_entries: dict[str, _Entry] = {}
_aliases: dict[str, str] = {}


def register(cards: ModelCard | Sequence[ModelCard], **aliases: str) -> Callable[[Builder], Builder]:
    """Register one builder for its cards: `@register(card)`, or `register(card)(builder)`.

    `aliases` maps a short name to a card's name; underscores in the short name stand for hyphens.
    """
    listed = (cards,) if isinstance(cards, ModelCard) else tuple(cards)

    def add(builder: Builder) -> Builder:
        for card in listed:
            if card.name in _entries:
                raise ValueError(f"model {card.name!r} is registered twice")
            _entries[card.name] = _Entry(card, builder)
        for short, name in aliases.items():
            _aliases[short.replace("_", "-")] = name
        return builder

    return add


def list_cards(glob: str | None = None) -> list[ModelCard]:
    """Cards of all models whose name or family matches `glob`, in order of registration."""
    _load_sources()
    cards = [entry.card for entry in _entries.values()]
    if glob is None:
        return cards
    return [card for card in cards if _matches(card, glob)]


def get_card(name: str) -> ModelCard:
    """The card of a model: a name, a short name, or `file.py:factory` / `package.module:factory`."""
    if ":" in name:
        from detscope.zoo import user

        return user.card_of(name)
    return _entry(name).card


def build(name: str, options: BuildOptions | None = None) -> BuiltModel:
    """Build a model with its weights; the same seed gives the same random weights."""
    options = options or BuildOptions()
    if options.num_classes is not None and options.num_classes < 2:
        raise UsageError(
            f"num_classes = {options.num_classes}: a detector needs background and at least one class",
            "set num_classes to 2 or more",
        )
    if ":" in name:
        from detscope.zoo import user

        return user.build(name, options)
    entry = _entry(name)
    return entry.builder(entry.card, options)


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


def _matches(card: ModelCard, glob: str) -> bool:
    return any(fnmatch.fnmatchcase(text, glob.lower()) for text in (card.name, card.family))


def _entry(name: str) -> _Entry:
    _load_sources()
    found = _entries.get(_aliases.get(name, name))
    if found is None:
        close = difflib.get_close_matches(name, [*_entries, *_aliases], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "a name, or file.py:factory for your own"
        raise UsageError(f"no model named {name!r}", f"{hint} `detscope models` lists all")
    return found


def _load_sources() -> None:
    for source in _SOURCES:
        importlib.import_module(source)
