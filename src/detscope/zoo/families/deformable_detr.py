"""Deformable DETR of transformers: attention to a few sampled points of four feature levels."""

from __future__ import annotations

from detscope.zoo.contract import Recipe
from detscope.zoo.families._transformers_build import DETECTOR, Framing, TransformersFamily, Variant, hub_card
from detscope.zoo.families._transformers_stages import (
    Layout,
    name_backbone,
    name_decoder,
    name_encoder,
    name_losses,
)

_RECIPE = Recipe("adamw", 2e-4, 1e-4, clip_gradients=0.1)


def name_deformable(layout: Layout) -> None:
    """Attention on a few points of all levels; queries are learnt, or selected by a head of their own."""
    name_backbone(layout, "model.backbone")
    layout.add_module("input_projection", *layout.list_children("model.input_proj"))
    layout.add_part("input_projection", "model", "model.backbone", "model.position_embedding")
    layout.add_module("encoder.positions", "model.position_embedding")
    name_encoder(layout, "model.encoder", "model.encoder.layers")
    layout.add_part("query_selection", "model", "model.encoder")
    name_decoder(layout, "model.decoder")
    layout.add_part("decoder", "model", "model.decoder")
    layout.name_ends("model")
    layers = layout.count_layers("model.decoder.layers")
    name_losses(layout, layers - 1 if layout.has_auxiliary else 0, encoder=False)


PART = TransformersFamily(
    name="deformable_detr",
    detector_classes=(
        DETECTOR,
        "transformers.models.deformable_detr.modeling_deformable_detr:DeformableDetrForObjectDetection",
    ),
    name_parts=name_deformable,
    order=91,
    cards=(hub_card("deformable_detr", "deformable_detr_r50", 40_122_785, "800-1333", _RECIPE),),
    variants={
        "deformable_detr_r50": Variant(
            "DeformableDetrForObjectDetection", Framing(800, 1333), {"auxiliary_loss": True}
        ),
    },
    class_heads=("network.class_embed.",),
)
