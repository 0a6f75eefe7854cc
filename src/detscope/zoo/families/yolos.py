"""YOLOS of transformers: a plain vision transformer with a hundred tokens that become detections."""

from __future__ import annotations

from detscope.zoo.contract import Recipe
from detscope.zoo.families._transformers_build import Framing, TransformersFamily, Variant, hub_card

_RECIPE = Recipe("adamw", 1e-4, 1e-4, clip_gradients=0.1)
_TINY = {
    "hidden_size": 192,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "image_size": [800, 1333],
    "use_mid_position_embeddings": False,
}

PART = TransformersFamily(
    name="yolos",
    order=95,
    cards=(hub_card("yolos", "yolos_tiny", 6_488_736, "512-1333", _RECIPE, has_convolutions=False),),
    variants={
        "yolos_tiny": Variant(
            "YolosForObjectDetection", Framing(512, 1333, has_no_object=True, sees_mask=False), _TINY
        )
    },
    class_heads=("network.class_labels_classifier.",),
)
