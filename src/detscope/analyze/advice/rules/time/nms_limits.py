"""Fewer candidates for non-maximum suppression."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.08


def advise(case: Case) -> Advice | None:
    """NMS grows faster than its candidates; half of them are less than half of its time."""
    share = case.stage_share("nms")
    if share < LEAST_SHARE:
        return None
    mode = "train" if case.is_training else "test"
    return case.suggest_change(
        "halve the candidates of NMS",
        f"Non-maximum suppression takes {share:.0%} of the step.",
        share / 2,
        "its time is at least proportional to its candidates; check the accuracy",
        in_code=f"in the model: halve rpn_pre_nms_top_n_{mode}, or topk_candidates of a single-stage model",
    )


PART = AdviceRule("nms_limits", 120, time=advise)
