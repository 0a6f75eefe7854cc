"""A GradScaler beside bfloat16: it has the range of float32, and nothing to scale."""

from __future__ import annotations

from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.diffs import Code, is_given
from detscope.analyze.findings.finding import Finding

_KERNELS = 3  # beside unscaling: the loss is scaled, the gradient of that, and the scale is updated


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Gradients were unscaled in steps whose products were of bfloat16 alone."""
    for found in case.by_function(case.places("scaling")):
        count = sum(row.count for row in found)
        tensors = max(int(row.facts.get("tensors", 0)) for row in found)
        yield case.make_finding(
            PART.name,
            found,
            f"A GradScaler unscales and checks {tensors} gradients {count:.3g} times per step, and the host"
            " reads whether they are finite before the optimizer may step; all products are of bfloat16,"
            " which overflows no sooner than float32.",
            "Leave the GradScaler out with bfloat16 (GradScaler(enabled=dtype == torch.float16)):"
            " loss.backward() and optimizer.step() as in float32.",
            text="no product of float16 in the same steps",
            waits=count,
            launches=count * (1 + _KERNELS),
            diff=case.write_constructor_diff(["GradScaler"], _rewrite),
        )


def _rewrite(code: Code) -> list[str] | None:
    """`GradScaler(...)` that is not enabled."""
    call, *others = code.find_calls("GradScaler")
    is_known = not others and len(call.args) <= 1 and not is_given(call, "enabled")
    return code.add_keyword(call, "enabled=False") if is_known else None


PART = AdviceRule("scaler_with_bf16", 103, lines=find_lines)
