"""Matching of predictions with boxes that keeps the host busy and the device waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.step.cost_content import BOXES

LEAST_SHARE = 0.05
WORTH_NAMING = 0.005  # of the step: a part of the matcher
_PARTS = ("cost", "copy_to_host", "assignment", "indices")


@dataclass(frozen=True)
class _Change:
    """What to change about the matcher, and among how many its time is then shared."""

    title: str
    how: str
    assumes: str
    part: str  # of the matcher; empty: all of it
    ways: float


def advise(case: Case) -> Advice | None:
    """The part of the matcher that takes most, and the boxes per image from which on it is most of a step."""
    share = case.stage_share("matcher")
    if not case.is_training or share < LEAST_SHARE:
        return None
    parts = {name: case.stage_share(name, inside="matcher") for name in _PARTS}
    parts[""] = share
    calls = _count_calls(case)
    change = max(_list_changes(case, calls), key=lambda one: parts[one.part] * (1 - 1 / one.ways))
    told = ", ".join(
        f"{name.replace('_', ' ')} {parts[name]:.0%}"
        for name in sorted(_PARTS, key=lambda name: -parts[name])
        if parts[name] >= WORTH_NAMING
    )
    often = f", in {calls:.3g} calls" if calls and calls > 1 else ""
    evidence = f"The matcher takes {share:.0%} of the step{often}" + (f" ({told}). " if told else ". ")
    return case.suggest_change(
        change.title,
        evidence + _tell_boxes(case, share),
        parts[change.part] * (1 - 1 / change.ways),
        change.assumes,
        in_code=change.how,
    )


def _list_changes(case: Case, calls: float | None) -> list[_Change]:
    """What could be done here; the last is there for matchers whose parts nobody knows."""
    layers, batch = max(1.0, calls or 1.0), max(1, case.summary.batch_size or 1)
    cores = case.summary.processor.cores if case.summary.processor is not None else None
    found = [
        _Change(
            "assign the images of a batch in threads",
            "map scipy's linear_sum_assignment, which runs without Python's lock, over the cost matrices with"
            " a concurrent.futures.ThreadPoolExecutor",
            "as many cores as threads have nothing else to do meanwhile",
            "assignment",
            max(1.0, min(cores or 2, batch)),
        ),
        _Change(
            "copy the matching costs of all decoder layers to the host at once",
            "compute the costs of all decoder layers first, torch.stack them, and call .cpu() once per step",
            "one copy takes as long as each of those now",
            "copy_to_host",
            layers,
        ),
        _Change(
            "compute matching costs image by image",
            "loop over the images, each one's queries against its own boxes only",
            "the matcher compares the queries of all images with the boxes of all, as DETR's does, and then"
            " takes what belongs to one image",
            "cost",
            batch,
        ),
    ]
    if case.on_accelerator:  # where small work is launching
        found[-1] = _Change(
            "compute the matching costs of all decoder layers at once",
            "stack the layers' logits and boxes along the batch and compute the costs in one go",
            "on a device they then take as long as those of one layer: what they cost is launching",
            "cost",
            layers,
        )
    once = _Change(
        "match once for all decoder layers",
        "match the last decoder layer only and take its pairs for all layers, which trains differently",
        "the pairs of one layer serve all; check the accuracy",
        "",
        max(2.0, layers),
    )
    known = any(case.stage_share(name, inside="matcher") >= WORTH_NAMING for name in _PARTS)
    useful = [change for change in found if change.ways > 1]
    return useful if known and useful else [once]


def _count_calls(case: Case) -> float | None:
    """How often a step matches: once per decoder layer, and once more for the encoder's proposals."""
    rows = [row for row in case.summary.modules if "matcher" in (row.stage or "").split(".") and row.calls]
    return min((row.calls for row in rows), default=None)  # parts of it may run once per image


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
    half = _round_up(boxes + missing_ms / cost.slope * 10)
    return (
        f"It grows by {cost.slope:.2g} ms with every 10 boxes in each image; there were {boxes:.3g}, and from"
        f" about {half:,} on it would be more than half of the step, if all else stays as it is."
    )


def _round_up(boxes: float) -> int:
    """To two digits: what lies on a line far from its points is known no better."""
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, boxes))) - 1))
    return math.ceil(boxes / step) * step


PART = AdviceRule("matcher", 140, time=advise)
