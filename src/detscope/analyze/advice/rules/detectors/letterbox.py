"""Images padded to a fixed size, where much of what the network computes is padding."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.advice.rules.time.padding import LEAST_PADDING

LEAST_GAIN = 0.05


def advise(case: Case) -> Advice | None:
    """The network's input has one size, whatever the images have."""
    content = case.summary.content
    padding = content.padding_share
    if not padding or padding < LEAST_PADDING or content.input_sizes != 1:
        return None
    if (case.by_settings and case.summary.batch_size != 1) or padding * case.dense_share < LEAST_GAIN:
        return None  # of our own trainings, grouping is a setting
    return case.suggest_change(
        "pad images to their own rectangle, not to a fixed one",
        f"{padding:.0%} of the pixels in the network's input are padding: it has the same size in all steps;"
        f" the layers that see whole images take {case.dense_share:.0%} of it.",
        padding * case.dense_share,
        "nothing is left to pad and cost follows pixels",
        in_code="batches of like aspect ratio, each padded to its own largest image and a multiple of the"
        " stride (rect=True in Ultralytics' engine; do_pad without pad_size in transformers' processors)",
    )


PART = AdviceRule("letterbox", 85, time=advise)
