"""Suppression of boxes class by class: a wait for the device for every class of every image."""

from __future__ import annotations

from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding

LEAST_PER_IMAGE = 4


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Lines that ask for it many times per image; batched_nms decides by itself how it does it."""
    images = _images_per_step(case)
    rows = case.places("suppression", accept=lambda place: place.facts.get("batched") == "0")
    for found in case.by_function(rows):
        count = sum(row.count for row in found)
        if count < LEAST_PER_IMAGE * images:
            continue
        yield case.make_finding(
            PART.name,
            found,
            f"torchvision's nms is called {count:.0f} times per step for {images:.3g} images,"
            f" {count / images:.3g} times for each: the host waits for every one of them.",
            "One call for all classes of an image: torchvision.ops.batched_nms(boxes, scores, labels,"
            " threshold); it moves the boxes of each class apart and keeps the same ones.",
            text="calls by this line, not those that batched_nms makes",
            waits=count - images,
            launches=count - images,
        )


def _images_per_step(case: LineCase) -> float:
    """As counted; one where nobody knows."""
    summary = case.summary
    if summary.images_per_s and case.case.step_ms:
        return max(1.0, summary.images_per_s * case.case.step_ms / 1e3)
    return float(summary.batch_size or 1)


PART = AdviceRule("nms_per_class", 106, lines=find_lines)
