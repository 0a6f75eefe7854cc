"""Small detectors of transformers with random weights, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

NAMES = ("rt_detr_v2", "d_fine", "deformable_detr", "detr", "yolos")
_STAGES = ["stage2", "stage3", "stage4"]
_WIDTHS = [16, 32, 64, 128]
_LAYERS = {
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_labels": 4,
    "d_model": 64,
}
_HYBRID = {
    "encoder_hidden_dim": 64,
    "decoder_in_channels": [64] * 3,
    "decoder_layers": 3,
    "num_queries": 60,
    "num_denoising": 20,
    **_LAYERS,
}


def make_detector(name: str) -> Any:
    """In training mode; auxiliary losses are on, decoders have 3 layers (hybrid encoders) or 2."""
    torch.manual_seed(0)
    blocks = {"embedding_size": 16, "hidden_sizes": _WIDTHS, "depths": [1] * 4, "layer_type": "basic"}
    plain = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
    plain |= {"encoder_layers": 2, "decoder_layers": 2, "num_queries": 50, "auxiliary_loss": True, **_LAYERS}
    if name == "rt_detr_v2":
        backbone = transformers.RTDetrResNetConfig(**blocks, out_features=_STAGES)
        config = transformers.RTDetrV2Config(
            backbone_config=backbone, encoder_in_channels=_WIDTHS[1:], **_HYBRID
        )
        model = transformers.RTDetrV2ForObjectDetection(config)
    elif name == "d_fine":
        backbone = transformers.HGNetV2Config(
            stem_channels=[3, 16, 16],
            stage_in_channels=_WIDTHS,
            stage_mid_channels=[16, 16, 32, 64],
            stage_out_channels=[32, 64, 128, 256],
            stage_num_blocks=[1] * 4,
            stage_numb_of_layers=[2] * 4,
            embedding_size=16,
            hidden_sizes=[32, 64, 128, 256],
            depths=[1] * 4,
            out_features=_STAGES,
        )
        channels = [64, 128, 256]
        config = transformers.DFineConfig(backbone_config=backbone, encoder_in_channels=channels, **_HYBRID)
        model = transformers.DFineForObjectDetection(config)
    elif name == "deformable_detr":
        backbone = transformers.ResNetConfig(**blocks, out_features=_STAGES)
        config = transformers.DeformableDetrConfig(backbone_config=backbone, **plain)
        model = transformers.DeformableDetrForObjectDetection(config)
    elif name == "detr":
        backbone = transformers.ResNetConfig(**blocks, out_features=_STAGES[-1:])
        model = transformers.DetrForObjectDetection(
            transformers.DetrConfig(backbone_config=backbone, **plain)
        )
    else:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        more = {"image_size": [128, 128], "num_detection_tokens": 50, "num_labels": 4}
        model = transformers.YolosForObjectDetection(transformers.YolosConfig(**sizes, **more))
    return model.train()


def make_batches(count: int, images: int = 2, boxes: int = 5) -> list[dict[str, Any]]:
    """As a data set would give them."""

    def make_target() -> dict[str, torch.Tensor]:
        return {"class_labels": torch.randint(0, 4, (boxes,)), "boxes": torch.rand(boxes, 4) * 0.3 + 0.3}

    torch.manual_seed(1)
    return [
        {"pixel_values": torch.rand(images, 3, 128, 128), "labels": [make_target() for _ in range(images)]}
        for _ in range(count)
    ]
