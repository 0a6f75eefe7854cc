"""Which step is recorded how: warm-up first, then recorded and bare steps interleaved."""

from __future__ import annotations

from dataclasses import dataclass

WARMUP, RECORDED, BARE, OPERATORS = "warmup", "recorded", "bare", "ops"


@dataclass(frozen=True)
class Schedule:
    """Decides the mode of every step from its index alone, so that a run can be repeated."""

    warmup_steps: int = 3
    bare_every: int = 4  # every n-th measured step runs bare, from 2 on; less: never
    operator_steps: int = 0  # a window recorded operator by operator
    operators_after: int = 1  # recorded steps before that window, so that it starts warm
    modules_dense: int = 256  # recorded steps with all modules; later ones are thinned
    modules_thinned_to: int = 8  # ... to one in this many

    def mode(self, index: int) -> str:
        """Mode of the step with this index, counted from 0 with the warm-up."""
        measured = index - self.warmup_steps
        if measured < 0:
            return WARMUP
        if self.operators_after <= measured < self.operators_after + self.operator_steps:
            return OPERATORS
        if self.bare_every > 1 and measured % self.bare_every == self.bare_every // 2:
            return BARE
        return RECORDED

    def with_modules(self, index: int) -> bool:
        """Whether modules are recorded too, or only phases: long runs keep a sample of them."""
        measured = index - self.warmup_steps
        return measured < self.modules_dense or measured % self.modules_thinned_to == 0

    def total_steps(self, recorded: int) -> int:
        """Steps to run so that this many are recorded, with warm-up, bare and operator steps on top."""
        index = left = 0
        while left < recorded:
            left += self.mode(index) == RECORDED
            index += 1
        return index
