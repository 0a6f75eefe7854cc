"""RF-DETR of the package rfdetr, by the names of its classes and the layout of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detscope.zoo.contract import Stage
from detscope.zoo.families.recognised._layout import find_parts
from detscope.zoo.family import Family

_MODELS = "rfdetr.models"
# a transformer of images, whose layers look at windows of it, and the projector behind it
_BACKBONE = (
    ("backbone", "backbone"),
    ("backbone.embeddings", "backbone.0.encoder.encoder.embeddings"),
    ("backbone.windows.layer_{}", "backbone.0.encoder.encoder.encoder.layer.*"),
    ("backbone.projector", "backbone.0.projector"),
    ("backbone.projector", "backbone.0.cross_attn_projector"),
    ("backbone.position", "backbone.1"),
)
_DECODER = (
    ("query_selection", "transformer._two_stage_group_selection()"),
    ("query_selection", "transformer.enc_output.*"),
    ("query_selection", "transformer.enc_output_norm.*"),
    ("query_selection", "transformer.enc_out_class_embed.*"),
    ("query_selection", "transformer.enc_out_bbox_embed.*"),
    ("query_selection", "transformer"),
    ("decoder", "transformer.decoder"),
    ("decoder.layer_{}", "transformer.decoder.layers.*"),
    ("decoder.layer_{}.self_attention", "transformer.decoder.layers.*.self_attn"),
    ("decoder.layer_{}.cross_attention", "transformer.decoder.layers.*.cross_attn"),
    ("decoder.layer_{}.feed_forward", "transformer.decoder.layers.*.linear1"),
    ("decoder.layer_{}.feed_forward", "transformer.decoder.layers.*.linear2"),
    ("decoder.query_position", "transformer.decoder.ref_point_head"),
    ("heads", "class_embed"),
    ("heads", "bbox_embed"),
    ("heads", "keypoint_embed"),
    ("heads.masks", "segmentation_head"),
)
_AROUND = (
    ("matcher", f"{_MODELS}.matcher:HungarianMatcher.forward"),
    ("matcher", f"{_MODELS}.matcher:HungarianMatcher._match_many"),
    ("matcher.cost", f"{_MODELS}.matcher:HungarianMatcher._compute_stacked_compact_cost_matrices"),
    ("matcher.cost", f"{_MODELS}.matcher:HungarianMatcher._compute_compact_detection_cost_matrix"),
    ("matcher.indices", f"{_MODELS}.matcher:HungarianMatcher._assign_compact_cost_matrix"),
    ("matcher.assignment", "scipy.optimize:linear_sum_assignment"),
    ("matcher.assignment", f"{_MODELS}._assignment:assign_many_bucketed"),
    ("loss", f"{_MODELS}.criterion:SetCriterion.forward"),
    ("loss.targets", f"{_MODELS}.criterion:SetCriterion._get_matched_targets"),
    ("loss.all_layers", f"{_MODELS}.criterion:SetCriterion._get_batched_detection_losses"),
    ("loss.class", f"{_MODELS}.criterion:SetCriterion.loss_labels"),
    ("loss.box", f"{_MODELS}.criterion:SetCriterion.loss_boxes"),
    ("loss.masks", f"{_MODELS}.criterion:SetCriterion.loss_masks"),
    ("loss.keypoints", f"{_MODELS}.criterion:SetCriterion.loss_keypoints"),
    ("ema", "rfdetr.training.callbacks.ema:RFDETREMACallback._update_ema_for_step"),
    ("postprocess", f"{_MODELS}.postprocess:PostProcess.forward"),
    ("postprocess.top_k", f"{_MODELS}.postprocess:PostProcess._select_topk"),
)


@dataclass(frozen=True, kw_only=True)
class RfdetrFamily(Family):
    """One transformer of images, one of queries."""

    def find_stages(self, module: Any) -> tuple[Stage, ...]:
        """By what the model calls its parts."""
        return find_parts(module, (*_BACKBONE, *_DECODER, *_AROUND))


PART = RfdetrFamily(name="rfdetr", order=330, detector_classes=("rfdetr.models.lwdetr:LWDETR",))
