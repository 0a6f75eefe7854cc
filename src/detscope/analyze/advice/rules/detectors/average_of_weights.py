"""An average of the weights (EMA) that is updated tensor by tensor after every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from detscope.analyze.advice.case import Advice, AdviceRule, Case
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.findings.finding import Finding

LEAST_SHARE = 0.05
EVERY = 10
LEAST_TENSORS = 30  # that one function updates in a step
# what torch._foreach_lerp_ took on one core, where this was measured (200 tensors, torch 2.15)
_TENSOR_MS, _NUMBER_MS = 0.4e-3, 0.3e-6


def advise(case: Case) -> Advice | None:
    """All tensors in one call where calls cost the time; fewer updates where the numbers do."""
    rows = [row for row in case.summary.parts if row.name == "ema"]
    share, ms = sum(row.share for row in rows), sum(row.ms for row in rows)
    model = case.summary.model
    if share < LEAST_SHARE or case.by_settings:  # our own training updates all of them in one call
        return None
    tensors, numbers = (model.tensors, model.parameters) if model is not None else (None, None)
    where = next((f" ({row.own.file}:{row.own.line})" for row in rows if row.own is not None), "")
    many = f" for {tensors:,} tensors, {ms / tensors * 1e3:.2g} µs each" if tensors else ""
    told = f"The average of the weights{where} takes {share:.0%} of the step{many}"
    needed = ms if not tensors or not numbers else tensors * _TENSOR_MS + numbers * _NUMBER_MS
    census = case.summary.census
    one_by_one = [place for place in census.places if place.kind == "average"] if census is not None else []
    at_once = census is not None and all(place.count < LEAST_TENSORS for place in one_by_one)
    if needed <= ms / 2 and not at_once:
        return case.suggest_change(
            "update all averaged weights at once",
            f"{told}, as they do one by one, in at least {tensors:,} launches.",
            share * (1 - needed / ms),
            f"one call for all takes {needed:.2g} ms, as it did where this was measured",
            in_code="torch._foreach_lerp_(averages, weights, 1 - decay) over lists that are made once, or"
            " torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))",
        )
    return case.suggest_change(
        f"update the averaged weights in every {EVERY}th step",
        f"{told}.",
        share * (1 - 1 / EVERY),
        "an average of every tenth step is as good; check the accuracy",
        in_code=f"if step % {EVERY} == 0: update the average, with decay ** {EVERY} in the place of decay",
    )


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Functions that multiply and add, or interpolate, tensor by tensor, outside of autograd."""
    rows = case.places("average")
    copies = sum(row.count for row in rows if row.what == "aten::copy_")
    for found in case.by_function(rows):
        counts = {row.what.removeprefix("aten::"): 0.0 for row in found}
        for row in found:
            counts[row.what.removeprefix("aten::")] += row.count
        added = max(counts.get("add_", 0.0), counts.get("sub_", 0.0))
        weighed = max(counts.get("mul_", 0.0), counts.get("sub", 0.0))  # or e -= (1 - decay) * (e - p)
        in_place = max(counts.get("lerp_", 0.0), min(weighed, added))
        # a function that gives back the new value has it copied by who called it
        given = max(counts.get("lerp", 0.0), min(counts.get("mul", 0.0), counts.get("add", 0.0)))
        tensors = max(in_place, given if _are_weights(found, case) else min(given, copies))
        if tensors < LEAST_TENSORS:
            continue
        launches = sum(counts.values())
        updates = [row for row in found if row.what != "aten::sub"]  # which may be a line before
        yield case.make_finding(
            PART.name,
            updates,
            f"{found[0].where.function} updates {tensors:.0f} tensors one by one in every step, as an"
            f" average of weights does: {launches:.0f} launches.",
            "All at once: torch._foreach_lerp_(averages, weights, 1 - decay) over lists that are made once,"
            " or AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) of torch.optim.swa_utils.",
            confidence="certain" if max(row.in_call for row in found) >= LEAST_TENSORS else "likely",
            text=", ".join(f"{count:.0f} {name}" for name, count in counts.items()),
            launches=launches,
        )


def _are_weights(rows: Sequence[CensusPlace], case: LineCase) -> bool:
    """Whether what is made has about as many numbers as the model: then it is kept, copied or not."""
    model = case.summary.model
    made = sum(row.bytes for row in rows if row.what in ("aten::add", "aten::lerp"))
    return model is not None and bool(model.parameters) and 0.5 < made / (4 * (model.parameters or 1)) < 2


PART = AdviceRule("average_of_weights", 98, time=advise, lines=find_lines)
