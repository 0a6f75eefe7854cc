"""Multi-scale training: images come in the sizes the data settings draw, and the model leaves them so."""

from __future__ import annotations

from typing import Any

from detscope.config.schema import DataSettings


def keep_drawn_sizes(module: Any, data: DataSettings) -> list[str]:
    """Stop a model from resizing what it trains on; evaluation resizes as ever. Tells what it did."""
    if not data.scales:
        return []
    transform = getattr(module, "transform", None)
    resizes = hasattr(transform, "_skip_resize") and getattr(transform, "fixed_size", None) is None
    if not resizes:
        return ["data.scales: this model resizes every image to one size of its own, so scales only blur"]
    vars(transform)["_skip_resize"] = True  # torchvision's own switch, looked at in training only
    sides = ", ".join(str(side) for side in sorted(data.scales))
    return [f"data.scales: images train at short sides of {sides}; the model's own resize is off"]
