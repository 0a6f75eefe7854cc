"""Losses of all decoder layers at once, where those of the auxiliary ones take long one by one."""

from __future__ import annotations

import re

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.05
_AUXILIARY = re.compile(r"(^|\.)loss\.(auxiliary_\d+|encoder|denoising)$")


def advise(case: Case) -> Advice | None:
    """What the layers before the last and the denoising queries add to the loss of the last."""
    rows = [row for row in case.summary.stages if _AUXILIARY.search(row.name)]
    share = sum(row.share for row in rows)
    main = case.stage_share("main", inside="loss")
    if not case.is_training or share < LEAST_SHARE or len(rows) < 2 or main > share:
        return None
    against = f", the one of the last layer {main:.0%}" if main else ""
    matched = case.stage_share("matcher") - case.stage_share("matcher", inside="loss")
    beside = f"; the matchers they call are told apart ({matched:.0%} for all layers)" if matched > 0 else ""
    return case.suggest_change(
        "compute the auxiliary losses of all layers at once",
        f"{len(rows)} losses beside that of the last layer (auxiliary, encoder, denoising) take {share:.0%}"
        f" of the step, one after the other{against}{beside}.",
        share - (main or share / len(rows)),
        f"together they take as long as {'that of the last layer' if main else 'one of them'} does now",
        in_code="stack the outputs of the layers along the batch, shift the matched indices by layer, and"
        " call each loss once; or leave out every second auxiliary layer, which trains differently",
    )


PART = AdviceRule("auxiliary_losses", 145, time=advise)
