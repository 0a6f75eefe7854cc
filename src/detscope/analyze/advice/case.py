"""What a rule sees: the run's figures by name; and what it answers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from detscope.analyze.rerun import MADE_BY_SETTINGS
from detscope.analyze.step.modules import ModuleFigures, StageFigures
from detscope.analyze.step.operators import OperatorFigures


@dataclass(frozen=True)
class Advice:
    """One change: what, why, what it could save of the step (Amdahl's law), and what that assumes."""

    rule: str
    title: str
    evidence: str
    gain_share: float
    assumes: str = ""
    sets: Mapping[str, object] = field(default_factory=dict)  # settings of ours that make the change
    in_code: str = ""  # the same change in somebody's own code

    def as_dict(self, case: Case) -> dict[str, Any]:
        """Plain data for views and `tune`; `how` is for people, `command` is one that can be typed."""
        settings = dict(self.sets) if case.by_settings else {}
        return {
            "rule": self.rule,
            "title": self.title,
            "evidence": self.evidence + (f" Assumes that {self.assumes}." if self.assumes else ""),
            "gain_share": self.gain_share,
            "gain_ms": self.gain_share * case.step_ms,
            "settings": settings,
            "how": "" if settings else self.in_code,
            "command": case.command(settings),
        }


@dataclass(frozen=True)
class Case:
    """A run's summary and settings, asked by name; what is not known is None or 0 shares."""

    summary: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def step_ms(self) -> float:
        """The median step."""
        return self.summary["step_ms"].p50 or 0.0

    @property
    def training(self) -> bool:
        """Whether this run trained: something went backward."""
        return self.phases.get("backward", 0.0) > 0

    @property
    def by_settings(self) -> bool:
        """Whether settings of ours made this run, so that others can change it."""
        return self.summary.get("verb") in MADE_BY_SETTINGS and bool(self.summary.get("rerun"))

    @property
    def own_loader(self) -> bool:
        """Whether a loader fed the loop that can be given workers; our inference reads by itself."""
        return self.summary.get("verb") not in ("infer", "eval")

    @property
    def on_cuda(self) -> bool:
        """Whether the model ran on a CUDA device."""
        device = self.summary.get("device")
        return isinstance(device, Mapping) or str(device or "").startswith("cuda")

    @cached_property
    def phases(self) -> dict[str, float]:
        """Share of each phase."""
        return {phase.name: phase.share for phase in self.summary["phases"]}

    def setting(self, dotted: str, default: Any = None) -> Any:
        """A setting of the run."""
        section, _, key = dotted.partition(".")
        value = (self.settings.get(section) or {}).get(key)
        return default if value is None else value

    def stage_share(self, *names: str) -> float:
        """Share of the step in stages of these names, parts included, wherever they hang."""
        stages: list[StageFigures] = self.summary["stages"]
        chosen = [row for row in stages if row.name in names or row.name.rpartition(".")[2] in names]
        inner = {row.name for row in chosen for other in chosen if row.name.startswith(f"{other.name}.")}
        return sum(row.share for row in chosen if row.name not in inner)

    def modules_of_type(self, *parts: str) -> list[ModuleFigures]:
        """Modules whose class name holds one of these words."""
        modules: list[ModuleFigures] = self.summary["modules"]
        return [row for row in modules if any(part in row.type for part in parts)]

    def self_share(self, modules: Sequence[ModuleFigures]) -> float:
        """Share of the step in these modules' own time."""
        return sum(row.self_ms for row in modules) / self.step_ms if self.step_ms else 0.0

    def operator_share(self, *words: str) -> float | None:
        """Share of operator time in operators whose name holds one of these words; None without operators."""
        operators: list[OperatorFigures] = self.summary["operators"]
        whole = sum(row.self_ms for row in operators)
        if not whole:
            return None
        return sum(row.self_ms for row in operators if any(word in row.name for word in words)) / whole

    def command(self, settings: Mapping[str, object]) -> str:
        """What to type: the run again with these settings, or the changed script; empty: there is nothing."""
        rerun = self.summary.get("rerun")
        if not rerun or (self.by_settings and not settings):
            return ""
        changes = (f" --set {shlex.quote(f'{key}={_toml(value)}')}" for key, value in settings.items())
        return str(rerun) + "".join(changes)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
