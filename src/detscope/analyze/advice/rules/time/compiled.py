"""torch.compile, where Python between operators takes a large share."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.20


def advise(case: Case) -> Advice | None:
    """What the forward pass spends outside of operators is Python."""
    operators = case.summary.operators
    inside_ms = sum(row.self_ms for row in operators if row.phase == "forward")
    forward = case.summary.find_phase("forward")
    forward_ms = case.phases.get("forward", 0.0) * case.step_ms
    if forward is not None and forward.host_ms is not None:  # Python is the host's, whatever the device does
        forward_ms = forward.host_ms
    if not operators or not forward_ms or inside_ms >= forward_ms:
        return None
    share = (forward_ms - inside_ms) / case.step_ms
    if forward is not None and forward.idle_ms is not None:  # and costs nothing while the device works
        share = min(share, forward.share - case.busy_share("forward"))
    if share < LEAST_SHARE:
        return None
    return case.suggest_change(
        "compile the backbone",
        f"{share:.0%} of the step is Python between operators of the forward pass.",
        share / 2,
        "compiling removes half of it",
        in_code="in the code: model.backbone = torch.compile(model.backbone)",
    )


PART = AdviceRule("compiled", 130, time=advise)
