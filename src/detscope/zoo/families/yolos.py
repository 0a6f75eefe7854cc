"""YOLOS of transformers: a plain vision transformer with a hundred tokens that become detections."""

from __future__ import annotations

from detscope.zoo.contract import Recipe
from detscope.zoo.families._transformers_build import DETECTOR, Framing, TransformersFamily, Variant, hub_card
from detscope.zoo.families._transformers_stages import (
    Layout,
    name_encoder,
    name_losses,
)

_RECIPE = Recipe("adamw", 1e-4, 1e-4, clip_gradients=0.1)
_TINY = {
    "hidden_size": 192,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "image_size": [800, 1333],
    "use_mid_position_embeddings": False,
}


def name_yolos(layout: Layout) -> None:
    """A vision transformer alone: patches and detection tokens go through the same layers."""
    layout.add_module("input_projection", "vit.embeddings")
    layout.add_module("encoder.positions", "vit.encoder.interpolation")
    name_encoder(layout, "vit.encoder", "vit.encoder.layer")
    layout.add_module("encoder", "vit.layernorm")
    layout.name_ends("vit")
    layers = layout.count_layers("vit.encoder.layer")
    name_losses(layout, layers - 1 if layout.has_auxiliary else 0, encoder=False)


PART = TransformersFamily(
    name="yolos",
    detector_classes=(
        DETECTOR,
        "transformers.models.yolos.modeling_yolos:YolosForObjectDetection",
    ),
    name_parts=name_yolos,
    order=95,
    cards=(hub_card("yolos", "yolos_tiny", 6_488_736, "512-1333", _RECIPE, has_convolutions=False),),
    variants={
        "yolos_tiny": Variant(
            "YolosForObjectDetection", Framing(512, 1333, has_no_object=True, sees_mask=False), _TINY
        )
    },
    class_heads=("network.class_labels_classifier.",),
)
