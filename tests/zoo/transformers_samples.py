"""Small detectors of transformers, made from configurations: layers of all kinds, little to compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import nn

LABELS = 5
_STAGES = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 32, 64],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
_LEVELS = ["stage2", "stage3", "stage4"]
_TRANSFORMER = {
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "decoder_attention_heads": 4,
    "decoder_layers": 3,
    "num_queries": 30,
    "num_labels": LABELS,
    "auxiliary_loss": True,
}
_HYBRID = {
    **_TRANSFORMER,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [16, 32, 64],
    "decoder_in_channels": [32, 32, 32],
    "encoder_layers": 1,
    "num_denoising": 10,
    "anchor_image_size": None,
    "freeze_backbone_batch_norms": False,
}
_PLAIN = {**_TRANSFORMER, "encoder_layers": 2}
_GROUPED = {
    "d_model": 32,
    "decoder_layers": 3,
    "decoder_ffn_dim": 64,
    "decoder_self_attention_heads": 4,
    "decoder_cross_attention_heads": 4,
    "decoder_n_points": 2,
    "num_queries": 30,
    "group_detr": 2,
    "hidden_expansion": 0.5,
    "c2f_num_blocks": 1,
    "num_labels": LABELS,
}


def _make(name: str, **settings: Any) -> nn.Module:
    kind = getattr(transformers, f"{name}ForObjectDetection")
    model: nn.Module = kind(kind.config_class(**settings))
    return model


def _make_resnet(**settings: Any) -> Any:
    return transformers.ResNetConfig(**_STAGES, **settings)


def make_hybrid(name: str, **settings: Any) -> nn.Module:
    """RT-DETR or its second version."""
    backbone = transformers.RTDetrResNetConfig(**_STAGES, out_features=_LEVELS)
    return _make(name, backbone_config=backbone, **(_HYBRID | settings))


def _make_d_fine() -> nn.Module:
    backbone = transformers.HGNetV2Config(
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 16, 16, 32],
        stage_mid_channels=[8, 8, 8, 16],
        stage_out_channels=[16, 16, 32, 64],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[2, 2, 2, 2],
        hidden_sizes=[16, 16, 32, 64],
        depths=[1, 1, 1, 1],
        out_features=_LEVELS,
    )
    return _make("DFine", backbone_config=backbone, **_HYBRID, depth_mult=0.34, decoder_n_points=[3, 6, 3])


def _make_plain(name: str, backbone: Any, **settings: Any) -> nn.Module:
    # `backbone` of older settings is a model of a hub
    none = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
    return _make(name, backbone_config=backbone, **none, **_PLAIN, **settings)


def _make_lw_detr() -> nn.Module:
    backbone = transformers.LwDetrViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        window_block_indices=[0],
        image_size=128,
        pretrain_image_size=128,
        num_windows=4,
        mlp_ratio=2,
        out_features=["stage2"],
    )
    return _make("LwDetr", backbone_config=backbone, projector_scale_factors=[1.0], **_GROUPED)


def _make_rf_detr() -> nn.Module:
    backbone = transformers.RfDetrDinov2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=128,
        patch_size=16,
        num_windows=2,
        mlp_ratio=2,
        out_features=["stage2"],
    )
    return _make("RfDetr", backbone_config=backbone, **_GROUPED)


def _make_yolos() -> nn.Module:
    return _make(
        "Yolos",
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=[128, 128],
        num_detection_tokens=30,
        num_labels=LABELS,
    )


DETECTORS: Mapping[str, Callable[[], nn.Module]] = {
    "rt_detr": lambda: make_hybrid("RTDetr"),
    "rt_detr_v2": lambda: make_hybrid("RTDetrV2"),
    "d_fine": _make_d_fine,
    "detr": lambda: _make_plain("Detr", _make_resnet(out_features=["stage4"])),
    "conditional_detr": lambda: _make_plain("ConditionalDetr", _make_resnet(out_features=["stage4"])),
    "deformable_detr": lambda: _make_plain("DeformableDetr", _make_resnet(out_features=_LEVELS)),
    "lw_detr": _make_lw_detr,
    "rf_detr": _make_rf_detr,
    "yolos": _make_yolos,
}


def make_inputs(boxes: int = 5, images: int = 2, size: int = 128) -> dict[str, Any]:
    """A batch as these models take it."""
    drawn = torch.Generator().manual_seed(boxes)
    labels = [
        {
            "class_labels": torch.randint(0, LABELS, (boxes,), generator=drawn),
            "boxes": torch.rand(boxes, 4, generator=drawn) * 0.3 + 0.2,
        }
        for _ in range(images)
    ]
    return {"pixel_values": torch.rand(images, 3, size, size, generator=drawn), "labels": labels}
