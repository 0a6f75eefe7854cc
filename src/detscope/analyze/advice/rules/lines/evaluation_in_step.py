"""The network that is trained, called once more without gradients in every training step."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines._placed import without_cost
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding, estimate_device

LEAST_SHARE = 0.5  # of its layers: fewer are a part of the loss


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Layers by the script's own line, with and without gradients."""
    places = case.places("layer")
    trained = sum(place.count for place in places if place.what == "with gradients")
    for found in case.by_function([place for place in places if place.what != "with gradients"]):
        count = sum(row.count for row in found)
        if not trained or count < LEAST_SHARE * trained:
            continue
        lines = {(row.where.file, row.where.line) for row in found}
        inside = case.places(
            "launch", "read", "size", "copy", accept=lambda place: (place.own.file, place.own.line) in lines
        )
        waits = sum(row.count for row in inside if row.kind != "launch")
        launches = sum(row.count for row in inside if row.kind == "launch")
        finding = case.make_finding(
            PART.name,
            found,
            f"The network that is trained is called without gradients too: {count:.0f} layers per step, beside"
            f" {trained:.0f} with gradients; {launches:.0f} launches and {waits:.0f} waits.",
            "Evaluate once per epoch or every hundred steps, or take what is logged from the training pass itself"
            " (detach its outputs).",
            confidence="likely" if not inside else "certain",
            text="weights that require gradients, used with gradients switched off, in steps that went backward",
        )
        finding = msgspec.structs.replace(finding, on_device=estimate_device(waits, launches, 0))
        if not inside:
            yield without_cost(finding, "no operators are known of this line")
            continue
        yield msgspec.structs.replace(
            finding,
            cost_ms=sum(row.host_ms for row in inside),
            cost_low_ms=sum(row.host_low_ms for row in inside),
            cost_high_ms=sum(row.host_high_ms for row in inside),
        )


PART = AdviceRule("evaluation_in_step", 107, lines=find_lines)
