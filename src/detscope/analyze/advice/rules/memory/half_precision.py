"""Half precision for what dense layers make."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, MemoryCase
from detscope.analyze.memory.half import halved
from detscope.analyze.memory.replay import peak_of


def advise(case: MemoryCase) -> Advice | None:
    """Autocast halves what dense layers make; copies of weights come on top."""
    if case.training.get("precision", case.info.get("precision")) != "fp32":
        return None
    on_cpu = str(case.info.get("device")) == "cpu"
    peak = peak_of(halved(case.replay, case.nodes))
    text = "mixed precision (bf16): outputs of dense layers are half as large, weights get a half copy"
    if peak > case.peak_bytes:
        text = (
            "mixed precision (bf16) would raise the peak: layers that give single precision again, such as"
            " frozen batch norm, are kept beside the half copies that the next layers make"
        )
    return case.suggest_saving(
        text,
        peak,
        "eight bits of mantissa; "
        + (
            "slower on CPUs without bf16 instructions, and less is saved without AVX-512"
            if on_cpu
            else f"check the {'loss' if case.is_training else 'accuracy'}"
        ),
        case.tell_how(
            "--precision bf16", "torch.autocast(device, dtype=torch.bfloat16) around the forward pass"
        ),
    )


PART = AdviceRule("memory.bf16", 220, memory=advise)
