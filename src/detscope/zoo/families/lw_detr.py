"""LW-DETR and RF-DETR of transformers: a plain vision transformer with windows, queries in groups."""

from __future__ import annotations

from detscope.zoo.contract import Recipe
from detscope.zoo.families._transformers_build import DETECTOR, Framing, TransformersFamily, Variant, hub_card
from detscope.zoo.families._transformers_stages import (
    Layout,
    name_backbone,
    name_decoder,
    name_losses,
)

_RECIPE = Recipe("adamw", 1e-4, 1e-4, clip_gradients=0.1)
_LW_TINY = {
    "backbone_config": {
        "model_type": "lw_detr_vit",
        "image_size": 1024,
        "hidden_size": 192,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "window_block_indices": [0, 2, 4],
        "out_indices": [1, 3, 5],
    },
    "projector_scale_factors": [1.0],
    "num_queries": 100,
    "decoder_n_points": 2,
}
_RF_NANO = {
    "backbone_config": {
        "model_type": "rf_detr_dinov2",
        "image_size": 384,
        "patch_size": 16,
        "hidden_size": 384,
        "num_attention_heads": 6,
        "num_windows": 2,
        "out_indices": [3, 6, 9, 12],
    },
    "decoder_n_points": 2,
    "decoder_layers": 2,
}


def name_lw_detr(layout: Layout) -> None:
    """No encoder: queries are selected from what the backbone's projector gives, in groups while training."""
    name_backbone(layout, "model.backbone")
    layout.add_module("input_projection", "model.backbone.projector")
    layout.add_part("query_selection", "model", "model.backbone")
    name_decoder(layout, "model.decoder")
    layout.add_part("decoder", "model", "model.decoder")
    layout.name_ends("model")
    layers = layout.count_layers("model.decoder.layers")
    name_losses(layout, layers - 1 if layout.has_auxiliary else 0, encoder=True)


PART = TransformersFamily(
    name="lw_detr",
    detector_classes=(
        DETECTOR,
        "transformers.models.lw_detr.modeling_lw_detr:LwDetrForObjectDetection",
        "transformers.models.rf_detr.modeling_rf_detr:RfDetrForObjectDetection",
    ),
    name_parts=name_lw_detr,
    order=94,
    cards=(
        hub_card("lw_detr", "lwdetr_tiny", 12_052_002, "640", _RECIPE, has_convolutions=False),
        hub_card("lw_detr", "rfdetr_nano", 30_467_298, "384", _RECIPE, has_convolutions=False),
    ),
    # patches of 16 pixels in windows: 4 by 4 of LW-DETR, 2 by 2 of RF-DETR
    variants={
        "lwdetr_tiny": Variant("LwDetrForObjectDetection", Framing(640, step=64, smallest=192), _LW_TINY),
        "rfdetr_nano": Variant("RfDetrForObjectDetection", Framing(384, step=32, smallest=288), _RF_NANO),
    },
    class_heads=("network.class_embed.", "network.model.enc_out_class_embed."),
)
