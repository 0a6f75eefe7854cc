"""RT-DETR and RT-DETR v2 of transformers: a convolutional pyramid, queries selected from it, denoising."""

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
    name_losses,
    name_selecting,
)

_RECIPE = Recipe("adamw", 1e-4, 1e-4, clip_gradients=0.1)
_TINY_RECIPE = Recipe("adamw", 1e-3, 1e-4, lr_warmup_steps=30, clip_gradients=1.0, batch_size=4)
_FRAMING = Framing(640, normalised=False, first_class=1, step=32, smallest=128)
_TINY_FRAMING = Framing(128, normalised=False, first_class=1, step=32, smallest=64)
_R18 = {
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [2, 2, 2, 2],
        "layer_type": "basic",
        "out_indices": [2, 3, 4],
    },
    "encoder_in_channels": [128, 256, 512],
    "hidden_expansion": 0.5,
    "decoder_layers": 3,
}
_TINY = {
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "embedding_size": 32,
        "hidden_sizes": [32, 64, 128, 256],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_indices": [2, 3, 4],
    },
    "encoder_in_channels": [64, 128, 256],
    "encoder_hidden_dim": 64,
    "encoder_ffn_dim": 128,
    "encoder_attention_heads": 4,
    "hidden_expansion": 0.5,
    "d_model": 64,
    "decoder_in_channels": [64, 64, 64],
    "decoder_ffn_dim": 128,
    "decoder_attention_heads": 4,
    "decoder_layers": 3,
    "num_queries": 30,
    "num_denoising": 60,
}


def name_rt_detr(layout: Layout) -> None:
    """A hybrid encoder, from whose pixels queries are selected, and a decoder that refines boxes."""
    name_selecting(layout)
    # all layers but the last have auxiliary losses, and so have the selected queries
    layers = layout.count_layers("model.decoder.layers")
    name_losses(layout, layers - 1 if layout.has_auxiliary else 0, encoder=layout.has_auxiliary)


PART = TransformersFamily(
    name="rt_detr",
    detector_classes=(
        DETECTOR,
        "transformers.models.rt_detr.modeling_rt_detr:RTDetrForObjectDetection",
        "transformers.models.rt_detr_v2.modeling_rt_detr_v2:RTDetrV2ForObjectDetection",
    ),
    name_parts=name_rt_detr,
    order=92,
    cards=(
        hub_card("rt_detr", "rtdetr_r18", 20_184_464, "640", _RECIPE),
        hub_card("rt_detr", "rtdetr_r50", 42_944_620, "640", _RECIPE),
        hub_card("rt_detr", "rtdetrv2_r18", 20_184_464, "640", _RECIPE),
    ),
    tiny=tiny_detr_card("rt_detr", "tiny_rtdetr", 1_760_768, "128", _TINY_RECIPE),
    variants={
        "rtdetr_r18": Variant("RTDetrForObjectDetection", _FRAMING, _R18),
        "rtdetr_r50": Variant("RTDetrForObjectDetection", _FRAMING),
        "rtdetrv2_r18": Variant("RTDetrV2ForObjectDetection", _FRAMING, _R18),
        "tiny_rtdetr": Variant("RTDetrForObjectDetection", _TINY_FRAMING, _TINY),
    },
    class_count=81,  # COCO's 80 classes without gaps, and background
    class_heads=(
        "network.class_embed.",
        "network.model.decoder.class_embed.",
        "network.model.enc_score_head.",
        "network.model.denoising_class_embed.",
    ),
)
