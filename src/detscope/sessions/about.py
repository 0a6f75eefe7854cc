"""What every run says about the model it measured."""

from __future__ import annotations

from typing import Any

from detscope.zoo.contract import BuiltModel


def about_model(built: BuiltModel) -> dict[str, Any]:
    """Name, family, size and weights, for `run.json`."""
    card, weights = built.card, built.weights
    parameters = sum(parameter.numel() for parameter in built.module.parameters())
    return {
        "model": {"name": card.name, "family": card.family, "source": card.source, "parameters": parameters},
        "weights": {
            "kind": weights.kind,
            "source": weights.source,
            "note": weights.note,
            "replaced": list(weights.replaced),
        },
    }
