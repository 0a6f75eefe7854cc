"""Images of like shape in one batch, where much of what the network computes is padding."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_PADDING = 0.10
LEFT = 0.3  # of the padding, after grouping


def advise(case: Case) -> Advice | None:
    """Grouping by aspect ratio removes most of the padding."""
    padding = case.summary.content.padding_share
    batch = case.summary.batch_size
    if (
        not padding
        or padding < LEAST_PADDING
        or batch == 1
        or case.read_setting("data.group_by_aspect") is True
    ):
        return None
    if case.summary.content.input_sizes == 1 and not case.by_settings:
        return None  # padded to a fixed size: another rule's
    dense = case.dense_share
    return case.suggest_change(
        "group images by aspect ratio",
        f"{padding:.0%} of the pixels in the network's input are padding; the layers that see whole images"
        f" take {dense:.0%} of the step.",
        padding * (1 - LEFT) * dense,
        f"grouping leaves {LEFT:.0%} of the padding and cost follows pixels",
        {"data.group_by_aspect": True} if case.is_training else {},
        "a batch sampler that puts images of like aspect ratio together"
        if case.is_training
        else "give images of like aspect ratio together",
    )


PART = AdviceRule("padding", 80, time=advise)
