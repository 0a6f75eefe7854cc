"""Which step is recorded how: warm-up first, then recorded steps, and bare ones drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, replace

WARMUP, RECORDED, BARE, OPERATORS, MEMORY = "warmup", "recorded", "bare", "ops", "memory"
CENSUS = "census"


@dataclass(frozen=True)
class Schedule:
    """Decides the mode of every step from its index and a seed alone, so that a run can be repeated."""

    warmup_steps: int = 3
    bare_every: int = 4  # one of so many measured steps runs bare, from 2 on; less: never
    operator_steps: int = 0  # a window recorded operator by operator
    operators_after: int = 1  # recorded steps before that window, so that it starts warm
    modules_dense: int = 256  # recorded steps with all modules; later ones are thinned
    modules_thinned_to: int = 8  # ... to one in this many
    memory_steps: int = 0  # right after the warm-up: recorded block by block, their times are not shown
    census_steps: int = (
        0  # after those of memory and operators: waits and launches are counted, their times are not shown
    )
    recorded_one_in: int = 1  # from `thinned_from` on: so few are recorded that it costs little
    thinned_from: int = 0
    settles: bool = False  # a device whose queue the window has emptied: the step after it is like the first
    seed: int = 0  # of the places of bare steps; ranks of one training share it

    def mode_of(self, index: int) -> str:
        """Mode of the step with this index, counted from 0 with the warm-up."""
        measured = index - self.warmup_steps
        if measured < 0:
            return WARMUP
        measured -= self.memory_steps
        if measured < 0:
            return MEMORY
        # operators first: a short run shall have them
        ended = self.operators_after + self.operator_steps if self.operator_steps else 0
        if self.operator_steps and self.operators_after <= measured < ended:
            return OPERATORS
        if ended <= measured < ended + self.census_steps:
            return CENSUS
        ended += self.census_steps
        if self.settles and ended and measured == ended:
            return WARMUP
        if self.bare_every <= 1:
            return RECORDED
        if self.recorded_one_in > 1 and index >= self.thinned_from:
            return BARE if _draw_number(self.seed, index) % self.recorded_one_in else RECORDED
        # of each group of `bare_every` steps one is bare, drawn: what recurs (workers, logging) never falls
        # on all; the first step of all is recorded: what is compared with it finds it there
        group, place = divmod(measured, self.bare_every)
        first = 0 if group else 1
        drawn = _draw_number(self.seed, group) % (self.bare_every - first) + first
        return BARE if place == drawn else RECORDED

    def without_operators_from(self, index: int) -> Schedule:
        """The same, but the window of operators ends before the step with this index."""
        first = self.warmup_steps + self.memory_steps + self.operators_after
        return replace(self, operator_steps=max(0, min(self.operator_steps, index - first)))

    def with_modules(self, index: int) -> bool:
        """Whether modules are recorded too, or only phases: long runs keep a sample of them."""
        measured = index - self.warmup_steps - self.memory_steps
        dense = self.modules_dense * self.recorded_one_in
        return measured < dense or measured % self.modules_thinned_to == 0

    def with_memory(self, index: int) -> bool:
        """Whether memory is watched: from the first step on, so that every block's beginning is known."""
        return self.memory_steps > 0 and index < self.warmup_steps + self.memory_steps

    def count_steps(self, recorded: int) -> int:
        """Steps to run so that this many are recorded, other kinds of steps on top."""
        index = left = 0
        while left < recorded:
            left += self.mode_of(index) == RECORDED
            index += 1
        return index


def _draw_number(seed: int, number: int) -> int:
    """A number that looks random, from two (SplitMix64: nothing to carry from step to step)."""
    mask = 2**64 - 1
    value = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) >> 16
