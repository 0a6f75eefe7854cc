"""Deformable DETR of transformers: attention to a few sampled points of four feature levels."""

from __future__ import annotations

from detscope.zoo.contract import Recipe
from detscope.zoo.families._transformers_build import Framing, TransformersFamily, Variant, hub_card

_RECIPE = Recipe("adamw", 2e-4, 1e-4, clip_gradients=0.1)

PART = TransformersFamily(
    name="deformable_detr",
    order=91,
    cards=(hub_card("deformable_detr", "deformable_detr_r50", 40_122_785, "800-1333", _RECIPE),),
    variants={
        "deformable_detr_r50": Variant(
            "DeformableDetrForObjectDetection", Framing(800, 1333), {"auxiliary_loss": True}
        ),
    },
    class_heads=("network.class_embed.",),
)
