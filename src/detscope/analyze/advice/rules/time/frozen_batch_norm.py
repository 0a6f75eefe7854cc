"""Frozen or fused batch norm, where normalisation takes a large share."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

LEAST_SHARE = 0.08


def advise(case: Case) -> Advice | None:
    """A frozen norm needs no statistics and a cheaper backward pass."""
    norms = [row for row in case.modules_of_type("BatchNorm") if "Frozen" not in row.type]
    share = case.self_share(norms)
    if share < LEAST_SHARE:
        return None
    dearest = max(norms, key=lambda row: row.self_ms or 0.0)
    if case.is_training:
        what, gain = "freeze batch norm", share * 0.5
        how = "in the model: torchvision.ops.FrozenBatchNorm2d in the place of BatchNorm2d"
        assumes = "a frozen norm takes half the time; with small batches its statistics are poor anyway"
    else:
        what, gain = "fold batch norm into the convolutions", share * 0.9
        how = "torch.nn.utils.fuse_conv_bn_eval on each pair of convolution and norm"
        assumes = "folded norms cost nothing"
    return case.suggest_change(
        what,
        f"{len(norms)} batch norms take {share:.0%} of the step, most of it in {dearest.path}.",
        gain,
        assumes,
        in_code=how,
    )


PART = AdviceRule("frozen_batch_norm", 90, time=advise)
