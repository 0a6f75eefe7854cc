"""What a script did by parts: its training and its evaluation."""

from __future__ import annotations

from statistics import median
from typing import Any

from detscope.record.steps.nodes import PHASES
from detscope.record.script.recorder import FinishedStep


class Part:
    """Training or evaluation: how many steps, how long."""

    def __init__(self) -> None:
        self.steps = 0
        self.batches = 0
        self.wall_ns: list[int] = []
        self.phases_ns: dict[str, int] = dict.fromkeys(PHASES, 0)

    def add(self, done: FinishedStep, phases_ns: dict[str, int] | None = None) -> None:
        """Take a step in."""
        self.steps += 1
        self.batches += done.batches
        self.wall_ns.append(done.end_ns - done.start_ns)
        for phase, spent_ns in (phases_ns or {}).items():
            self.phases_ns[phase] += spent_ns

    def describe(self) -> dict[str, Any]:
        """For `run.json`."""
        return {
            "steps": self.steps,
            "batches": self.batches,
            "total_s": sum(self.wall_ns) / 1e9,
            "step_p50_ms": median(self.wall_ns) / 1e6 if self.wall_ns else None,
        }
