"""The head whose boxes need no suppression, where a detector has one and suppresses boxes all the same."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.05


def advise(case: Case) -> Advice | None:
    """One box per object and the best by score, in the place of many and NMS."""
    share, model = case.stage_share("nms"), case.summary.model
    if case.is_training or share < LEAST_SHARE or model is None or not model.one_to_one_head:
        return None
    if case.stage_share("one2one", "top_k"):
        return None  # it is in use, and what is called NMS finds nothing to suppress
    return case.suggest_change(
        "take the one-to-one head and its best scores, without NMS",
        f"Non-maximum suppression takes {share:.0%} of the step, and the model has a head that gives one box"
        " per object.",
        share,
        "choosing the best scores costs nothing beside it; check the accuracy, which may differ",
        in_code="model.end2end = True on the detector (Ultralytics: v10, 26) before its first prediction,"
        " which drops the head that is not chosen",
    )


PART = AdviceRule("end_to_end_head", 118, time=advise)
