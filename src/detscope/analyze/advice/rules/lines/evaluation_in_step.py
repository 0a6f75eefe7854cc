"""The network that is trained, called once more without gradients in every training step."""

from __future__ import annotations

from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding

LEAST_SHARE = 0.5  # of its layers: fewer are a part of the loss
_WITH, _WITHOUT = "with gradients", "without gradients"


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Lines that call the network without gradients, by its layers with weights."""
    places = case.places("layer")
    trained = sum(place.count for place in places if place.what == _WITH)
    for found in case.by_function([place for place in places if place.what != _WITH]):
        layers = sum(row.count for row in found if row.what == _WITHOUT)
        if not trained or layers < LEAST_SHARE * trained:
            continue
        lines = {row.where for row in found if row.what == _WITHOUT}
        rows = [row for row in found if row.where in lines]
        spent, launches = sum(row.host_ms for row in rows), sum(row.count for row in rows)
        whole = sum(row.host_ms for row in case.places("launch"))
        share = f", {spent / whole:.0%} of all operators' time" if whole else ""
        yield case.make_finding(
            PART.name,
            rows,
            f"The network that is trained is called without gradients too, in every step: {layers:.0f} layers"
            f" with weights beside {trained:.0f} with gradients, {launches:.0f} launches{share}.",
            "Evaluate once per epoch or every hundred steps, or take what is logged from the training pass"
            " (detach its outputs).",
            text="weights that were used with gradients and without in steps that went backward",
            launches=launches,
        )


PART = AdviceRule("evaluation_in_step", 107, lines=find_lines)
