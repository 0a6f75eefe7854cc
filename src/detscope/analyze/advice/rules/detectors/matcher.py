"""Matching of predictions with boxes that keeps the host busy and the device waiting."""

from __future__ import annotations

import math

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.step.cost_content import BOXES

LEAST_SHARE = 0.05
# the part that takes most of it: what to change, and how
_CHANGES = {
    "assignment": (
        "assign the images of a batch in threads",
        "map scipy's linear_sum_assignment, which runs without Python's lock, over the cost matrices with a"
        " concurrent.futures.ThreadPoolExecutor; or match the last decoder layer only and take its pairs for"
        " all layers, which trains differently",
        "the processor's cores have nothing else to do meanwhile",
    ),
    "copy_to_host": (
        "copy the matching costs of all decoder layers to the host at once",
        "compute the costs of all decoder layers first, torch.stack them, and call .cpu() once per step",
        "one copy takes as long as each of those now",
    ),
    "cost": (
        "compute the matching costs of all decoder layers at once",
        "stack the layers' logits and boxes along the batch and compute the costs in one go",
        "small tensors take as long as large ones: what they cost is launching",
    ),
}
_WHOLE = (
    "match once for all decoder layers",
    "match the last decoder layer only and take its pairs for the auxiliary losses: check the accuracy",
    "the pairs of one layer serve all",
)


def advise(case: Case) -> Advice | None:
    """The part of the matcher that takes most, and the boxes per image from which on it is most of a step."""
    share = case.stage_share("matcher")
    if not case.is_training or share < LEAST_SHARE:
        return None
    parts = {name: case.stage_share(name, inside="matcher") for name in _CHANGES}
    largest = max(parts, key=lambda name: parts[name])
    calls = _count_calls(case)
    title, how, assumes = _CHANGES[largest] if parts[largest] > share / 3 else _WHOLE
    gain = (parts[largest] if parts[largest] > share / 3 else share) * (1 - 1 / max(2.0, calls or 0.0))
    if largest == "assignment" and title != _WHOLE[0]:
        gain = parts[largest] * (1 - 1 / _count_threads(case))
    told = ", ".join(
        f"{name.replace('_', ' ')} {part:.0%}"
        for name, part in sorted(parts.items(), key=lambda item: -item[1])
        if part
    )
    often = f", {calls:.3g} times a step" if calls and calls > 1 else ""
    evidence = f"The matcher takes {share:.0%} of the step{often}" + (f" ({told}). " if told else ". ")
    return case.suggest_change(title, evidence + _tell_boxes(case, share), gain, assumes, in_code=how)


def _count_calls(case: Case) -> float | None:
    """How often a step matches: once per decoder layer, and once more for the encoder's proposals."""
    rows = [row for row in case.summary.modules if "matcher" in (row.stage or "").split(".") and row.calls]
    return min((row.calls for row in rows), default=None)  # parts of it may run once per image


def _count_threads(case: Case) -> float:
    """As many as there are images or cores; two where neither is known."""
    cores = case.summary.processor.cores if case.summary.processor is not None else None
    return max(2.0, min(cores or 2, case.summary.batch_size or 2))


def _tell_boxes(case: Case, share: float) -> str:
    """At how many boxes per image it would be more than half of the step, by the slope in this run."""
    boxes = case.summary.content.boxes_per_image
    here = "" if boxes is None else f" with {boxes:.3g} boxes per image"
    if share > 0.5:
        return f"That is more than half of it{here}."
    cost = next(
        (row for row in case.summary.cost_against_content if (row.stage, row.measure) == ("matcher", BOXES)),
        None,
    )
    unknown = "Cannot tell from how many boxes on it would be half of the step: "
    if cost is None or boxes is None:
        return unknown + "the boxes of a batch are not known."
    if cost.slope is None or cost.ci95 is None:
        return unknown + f"{cost.why or f'{cost.n} steps are too few'}."
    if cost.ci95.low <= 0:
        return unknown + f"in {cost.n} steps its time did not follow the {boxes:.3g} boxes per image."
    missing_ms = (1 - 2 * share) * case.step_ms
    half = round_up(boxes + missing_ms / cost.slope * 10)
    return (
        f"It grows by {cost.slope:.2g} ms with every 10 boxes in each image; there were {boxes:.3g}, and from"
        f" about {half:,} on it would be more than half of the step, if all else stays as it is."
    )


def round_up(boxes: float) -> int:
    """To two digits: what lies on a line far from its points is known no better."""
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, boxes))) - 1))
    return math.ceil(boxes / step) * step


PART = AdviceRule("matcher", 140, time=advise)
