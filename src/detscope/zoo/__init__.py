"""WHAT is measured: the models, their stages and their weights. Listing models needs no torch."""

from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Observer, Recipe, Stage, WeightsUsed
from detscope.zoo.family import Family
from detscope.zoo.registry import build_model, check_trainable, get_card, list_cards

__all__ = [
    "BuildOptions",
    "BuiltModel",
    "Family",
    "ModelCard",
    "Observer",
    "Recipe",
    "Stage",
    "WeightsUsed",
    "build_model",
    "check_trainable",
    "get_card",
    "list_cards",
]
