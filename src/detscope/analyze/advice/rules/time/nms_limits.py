"""Fewer candidates for non-maximum suppression."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.08


def advise(case: Case) -> Advice | None:
    """NMS grows faster than its candidates; half of them are less than half of its time."""
    share, model = case.stage_share("nms"), case.summary.model
    if share < LEAST_SHARE or (not case.is_training and model is not None and model.one_to_one_head):
        return None  # of a model that can do without it, another rule's
    mode = "train" if case.is_training else "test"
    unwanted = _tell_unwanted(case)
    return case.suggest_change(
        "halve the candidates of NMS",
        f"Non-maximum suppression takes {share:.0%} of the step.{unwanted}",
        share / 2,
        "its time is at least proportional to its candidates; check the accuracy",
        in_code=f"in the model: halve rpn_pre_nms_top_n_{mode}, or topk_candidates of a single-stage model"
        + ("; or a higher threshold of scores before it" if unwanted else ""),
    )


def _tell_unwanted(case: Case) -> str:
    """How many of the boxes that it works on nobody asks for: what a threshold before it would leave out."""
    found, score = case.summary.detections, case.summary.score
    if found is None or score is None or not found.per_image or found.above_score_per_image is None:
        return ""
    return (
        f" Of the {found.per_image:.0f} boxes per image that it leaves, {found.above_score_per_image:.0f}"
        f" have a score above {score:g}."
    )


PART = AdviceRule("nms_limits", 120, time=advise)
