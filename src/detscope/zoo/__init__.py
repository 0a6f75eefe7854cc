"""WHAT is measured: the models, their stages and their weights. Listing models needs no torch."""

from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Observer, Stage, WeightsUsed
from detscope.zoo.registry import build, check_trainable, get_card, list_cards, register

__all__ = [
    "BuildOptions",
    "BuiltModel",
    "ModelCard",
    "Observer",
    "Stage",
    "WeightsUsed",
    "build",
    "check_trainable",
    "get_card",
    "list_cards",
    "register",
]
