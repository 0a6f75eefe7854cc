"""DETR of transformers: a transformer on the last feature map, one class for each query."""

from __future__ import annotations

from detscope.zoo.contract import Recipe
from detscope.zoo.families._transformers_build import (
    DETECTOR,
    Framing,
    TransformersFamily,
    Variant,
    hub_card,
    tiny_detr_card,
)
from detscope.zoo.families._transformers_stages import (
    Layout,
    name_backbone,
    name_decoder,
    name_encoder,
    name_losses,
)

_RECIPE = Recipe("adamw", 1e-4, 1e-4, clip_gradients=0.1)
_TINY_RECIPE = Recipe("adamw", 5e-4, 1e-4, lr_warmup_steps=30, clip_gradients=0.1, batch_size=4)
_FRAMING = Framing(800, 1333, has_no_object=True)
_TINY_FRAMING = Framing(128, 160, has_no_object=True)
_TINY = {
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 32,
        "hidden_sizes": [32, 64, 128],
        "depths": [1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage3"],
    },
    "num_queries": 20,
    "d_model": 64,
    "encoder_layers": 1,
    "encoder_ffn_dim": 128,
    "encoder_attention_heads": 4,
    "decoder_layers": 3,
    "decoder_ffn_dim": 128,
    "decoder_attention_heads": 4,
    "dropout": 0.0,
    "auxiliary_loss": True,
}


def name_detr(layout: Layout) -> None:
    """Layers of a plain transformer on one feature map; its queries are learnt."""
    name_backbone(layout, "model.backbone")
    layout.add_module("input_projection", "model.input_projection")
    layout.add_part("input_projection", "model", "model.backbone")
    layout.add_module("encoder.positions", "model.position_embedding")
    name_encoder(layout, "model.encoder", "model.encoder.layers")
    layout.add_part("encoder.positions", "model", "model.position_embedding")
    name_decoder(layout, "model.decoder")
    layout.add_part("decoder", "model", "model.encoder", "model.decoder")
    layout.name_ends("model")
    layers = layout.count_layers("model.decoder.layers")
    name_losses(layout, layers - 1 if layout.has_auxiliary else 0, encoder=False)


PART = TransformersFamily(
    name="detr",
    detector_classes=(
        DETECTOR,
        "transformers.models.detr.modeling_detr:DetrForObjectDetection",
        "transformers.models.conditional_detr.modeling_conditional_detr:ConditionalDetrForObjectDetection",
    ),
    name_parts=name_detr,
    order=90,
    cards=(hub_card("detr", "detr_r50", 41_577_888, "800-1333", _RECIPE),),
    tiny=tiny_detr_card("detr", "tiny_detr", 514_026, "128-160", _TINY_RECIPE),
    variants={
        # auxiliary losses as it was trained with; the configuration of the weights leaves them out
        "detr_r50": Variant("DetrForObjectDetection", _FRAMING, {"auxiliary_loss": True}),
        "tiny_detr": Variant("DetrForObjectDetection", _TINY_FRAMING, _TINY),
    },
    class_heads=("network.class_labels_classifier.",),
)
