"""D-FINE of transformers: an RT-DETR on HGNet v2 whose boxes are distributions that layers refine."""

from __future__ import annotations

from dataclasses import replace

from detscope.zoo.contract import Recipe
from detscope.zoo.families._transformers_build import (
    DETECTOR,
    Framing,
    TransformersFamily,
    Variant,
    hub_card,
    tiny_detr_card,
)
from detscope.zoo.families.rt_detr import name_rt_detr

_RECIPE = Recipe("adamw", 2e-4, 1e-4, clip_gradients=0.1)
_TINY_RECIPE = Recipe("adamw", 2e-3, 1e-4, lr_warmup_steps=30, clip_gradients=1.0, batch_size=4)
_FRAMING = Framing(640, normalised=False, first_class=1, step=32, smallest=128)
_N_FRAMING = replace(_FRAMING, smallest=256)  # its two levels have fewer places
_TINY_FRAMING = Framing(128, normalised=False, first_class=1, step=32, smallest=64)
_B0 = {
    "model_type": "hgnet_v2",
    "hidden_sizes": [128, 256, 512, 1024],
    "stem_channels": [3, 16, 16],
    "stage_in_channels": [16, 64, 256, 512],
    "stage_mid_channels": [16, 32, 64, 128],
    "stage_out_channels": [64, 256, 512, 1024],
    "stage_num_blocks": [1, 1, 2, 1],
    "stage_numb_of_layers": [3, 3, 3, 3],
    "use_learnable_affine_block": True,
}
_N = {
    "backbone_config": _B0 | {"out_indices": [3, 4]},
    "num_feature_levels": 2,
    "feat_strides": [16, 32],
    "encode_proj_layers": [1],
    "encoder_in_channels": [512, 1024],
    "encoder_hidden_dim": 128,
    "encoder_ffn_dim": 512,
    "hidden_expansion": 0.34,
    "depth_mult": 0.5,
    "d_model": 128,
    "decoder_in_channels": [128, 128],
    "decoder_ffn_dim": 512,
    "decoder_n_points": [6, 6],
    "decoder_layers": 3,
}
_S = {
    "backbone_config": _B0 | {"out_indices": [2, 3, 4]},
    "encoder_in_channels": [256, 512, 1024],
    "hidden_expansion": 0.5,
    "depth_mult": 0.34,
    "decoder_n_points": [3, 6, 3],
    "decoder_layers": 3,
}
_TINY = {
    "backbone_config": {
        "model_type": "hgnet_v2",
        "hidden_sizes": [16, 32, 64, 128],
        "stem_channels": [3, 8, 16],
        "stage_in_channels": [16, 16, 32, 64],
        "stage_mid_channels": [8, 16, 32, 64],
        "stage_out_channels": [16, 32, 64, 128],
        "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [2, 2, 2, 2],
        "out_indices": [2, 3, 4],
    },
    "encoder_in_channels": [32, 64, 128],
    "encoder_hidden_dim": 64,
    "encoder_ffn_dim": 128,
    "encoder_attention_heads": 4,
    "hidden_expansion": 0.5,
    "depth_mult": 0.34,
    "d_model": 64,
    "decoder_in_channels": [64, 64, 64],
    "decoder_ffn_dim": 128,
    "decoder_attention_heads": 4,
    "decoder_n_points": [3, 3, 3],
    "decoder_layers": 3,
    "num_queries": 30,
    "num_denoising": 20,
}


PART = TransformersFamily(
    name="d_fine",
    detector_classes=(
        DETECTOR,
        "transformers.models.d_fine.modeling_d_fine:DFineForObjectDetection",
    ),
    name_parts=name_rt_detr,
    order=93,
    cards=(
        hub_card("d_fine", "dfine_n", 3_782_693, "640", _RECIPE),
        hub_card("d_fine", "dfine_s", 10_321_877, "640", _RECIPE),
    ),
    tiny=tiny_detr_card("d_fine", "tiny_dfine", 536_285, "128", _TINY_RECIPE),
    variants={
        "dfine_n": Variant("DFineForObjectDetection", _N_FRAMING, _N),
        "dfine_s": Variant("DFineForObjectDetection", _FRAMING, _S),
        "tiny_dfine": Variant("DFineForObjectDetection", _TINY_FRAMING, _TINY),
    },
    class_count=81,  # COCO's 80 classes without gaps, and background
    class_heads=(
        "network.class_embed.",
        "network.model.decoder.class_embed.",
        "network.model.enc_score_head.",
        "network.model.denoising_class_embed.",
    ),
)
