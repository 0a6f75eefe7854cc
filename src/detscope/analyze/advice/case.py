"""What a rule of advice sees: the run's figures, or its replayed step; and what it answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.memory.figures import MemorySlope
from detscope.analyze.memory.replay import Booleans, Replay, peak_of
from detscope.analyze.rerun import MADE_BY_SETTINGS
from detscope.analyze.step.clocks import is_accelerator
from detscope.analyze.step.modules import ModuleFigures

if TYPE_CHECKING:
    from detscope.analyze.findings.case import LineCase
    from detscope.analyze.findings.finding import Finding
    from detscope.analyze.summary import RunSummary

Setting = bool | int | float | str


class SettingValue(Figure, frozen=True, kw_only=True):
    """A setting of ours that makes the change."""

    key: str  # training.num_workers
    value: Setting  # that it gets


class Advice(Figure, frozen=True, kw_only=True):
    """Something to change: what, why, what it could save, what it costs, and the command that tries it."""

    rule: str = ""  # that found it
    about: Literal["time", "memory"]  # what it saves
    title: str  # what to change
    evidence: str = ""  # with what it assumes
    gain_share: float | None = None  # of the step (Amdahl's law)
    gain_ms: float | None = None  # of the step
    saves_bytes: int | None = None  # of the peak, by replay of this run's own step
    saves_share: float | None = None  # of the peak
    peak_bytes: int | None = None  # afterwards
    measured_bytes: int | None = None  # of the peak, where --try ran it: then this holds, not the replay
    measured_peak_bytes: int | None = None  # afterwards, measured
    measured_step_ratio: float | None = None  # of the step's time, after over before, measured
    at_most: bool = False  # the saving is an upper bound
    worth: bool = True  # worth a line
    costs: str = ""  # what is lost by it
    settings: tuple[SettingValue, ...] = ()
    how: str = ""  # for people
    command: str = ""  # that can be typed
    stage: str | None = None  # that the change is about
    paths: tuple[str, ...] = ()  # modules that the change is about
    recomputed_ms: float | None = None  # forward again, per step
    batch_size: int | None = None  # afterwards
    bytes_per_image: float | None = None  # at the peak


@dataclass(frozen=True)
class AdviceRule:
    """A part: looks at a run's figures (`time`), its replayed step (`memory`) or its census (`lines`)."""

    name: str
    order: int
    time: Callable[[Case], Advice | None] | None = None
    memory: Callable[[MemoryCase], Advice | None] | None = None
    lines: Callable[[LineCase], Iterable[Finding]] | None = None  # of code, by the census


@dataclass(frozen=True)
class Case:
    """A run's summary and settings, asked by name; what is not known is None or 0 shares."""

    summary: RunSummary
    settings: Mapping[str, Any]

    @property
    def step_ms(self) -> float:
        """The median step."""
        return self.summary.step_ms.p50 or 0.0

    @property
    def is_training(self) -> bool:
        """Whether this run trained: something went backward."""
        return self.phases.get("backward", 0.0) > 0

    @property
    def by_settings(self) -> bool:
        """Whether settings of ours made this run, so that others can change it."""
        return self.summary.verb in MADE_BY_SETTINGS and bool(self.summary.rerun)

    @property
    def own_loader(self) -> bool:
        """Whether a loader fed the loop that can be given workers; our inference reads by itself."""
        return self.summary.verb not in ("infer", "eval")

    @property
    def on_accelerator(self) -> bool:
        """Whether the model ran on a device with a queue of its own: CUDA, ROCm, XPU, MPS, ..."""
        use = self.summary.device_use
        if self.summary.clocks.clock == "device" or (use is not None and use.why is None):
            return True
        return self.summary.verb != "import" and is_accelerator(self.summary.device)

    @cached_property
    def phases(self) -> dict[str, float]:
        """Share of each phase; on a device's clock, of its step."""
        return {phase.name: phase.share for phase in self.summary.phases}

    def busy_share(self, *phases: str) -> float:
        """Share of the step in which work of these phases ran: where the device stood idle, none did."""
        shares = 0.0
        for phase in self.summary.phases:
            if phase.name in phases:
                idle = (phase.idle_ms or 0.0) / phase.ms if phase.ms else 0.0
                shares += phase.share * max(0.0, 1 - idle)
        return shares

    def idle_share(self, cause: str) -> float:
        """Share of the device's window in which it stood idle for this cause; 0 where it is not known."""
        use = self.summary.device_use
        causes = use.idle.causes if use is not None and use.idle is not None else ()
        return next((one.share or 0.0 for one in causes if one.name == cause), 0.0)

    def read_setting(self, dotted: str, default: Any = None) -> Any:
        """A setting of the run."""
        section, _, key = dotted.partition(".")
        value = (self.settings.get(section) or {}).get(key)
        return default if value is None else value

    def stage_share(self, *names: str, inside: str = "") -> float:
        """Share of the step in stages of these names, parts included, wherever they hang or `inside` one.

        What runs beside the model, as suppression of boxes after its call does, is a part of `other`.
        """

        def fits(name: str) -> bool:
            *above, last = name.split(".")
            return (name in names or last in names) and (not inside or inside in above)

        chosen = [row for row in self.summary.stages if fits(row.name)]
        inner = {row.name for row in chosen for other in chosen if row.name.startswith(f"{other.name}.")}
        beside = sum(part.share for part in self.summary.parts if fits(part.name))
        return beside + sum(row.share for row in chosen if row.name not in inner)

    @cached_property
    def dense_share(self) -> float:
        """Share of the step in layers that see whole images; a guess where no stage of theirs is known."""
        known = self.stage_share("backbone", "fpn", "neck", "encoder", "head")
        return known or 0.7 * self.busy_share("forward", "backward")

    def modules_of_type(self, *parts: str) -> list[ModuleFigures]:
        """Modules whose class name holds one of these words."""
        return [row for row in self.summary.modules if any(part in row.type for part in parts)]

    def self_share(self, modules: Sequence[ModuleFigures]) -> float:
        """Share of the step in these modules' own time."""
        whole = self.summary.clocks.device_step_ms or self.step_ms
        return sum(row.self_ms or 0.0 for row in modules) / whole if whole else 0.0

    def operator_share(self, *words: str) -> float | None:
        """Share of operator time in operators whose name holds one of these words; None without operators."""
        operators = self.summary.operators
        whole = sum(row.self_ms for row in operators)
        if not whole:
            return None
        return sum(row.self_ms for row in operators if any(word in row.name for word in words)) / whole

    def suggest_change(
        self,
        title: str,
        evidence: str,
        gain_share: float,
        assumes: str = "",
        sets: Mapping[str, Setting] | None = None,
        in_code: str = "",
    ) -> Advice:
        """A change that shortens the step: by settings of ours, or the same in somebody's own code."""
        settings = dict(sets or {}) if self.by_settings else {}
        return Advice(
            about="time",
            title=title,
            evidence=evidence + (f" Assumes that {assumes}." if assumes else ""),
            gain_share=gain_share,
            gain_ms=gain_share * self.step_ms if self.step_ms else None,
            settings=tuple(SettingValue(key=key, value=value) for key, value in settings.items()),
            how="" if settings else in_code,
            command=self.rerun_with(settings),
        )

    def rerun_with(self, settings: Mapping[str, Setting]) -> str:
        """What to type: the run again with these settings, or the changed script; empty: there is nothing."""
        rerun = self.summary.rerun
        if not rerun or (self.by_settings and not settings):
            return ""
        changes = (f" --set {shlex.quote(f'{key}={_toml_value(value)}')}" for key, value in settings.items())
        return str(rerun) + "".join(changes)


def _toml_value(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class MemoryCase:
    """The step of the peak, to be replayed with something changed."""

    replay: Replay
    peak_bytes: int
    peak_ns: int
    nodes: pl.DataFrame
    spans: pl.DataFrame
    training: dict[str, Any]
    info: dict[str, Any]
    slope: MemorySlope | None
    categories: dict[str, int]
    by_settings: bool  # options and settings of ours can change the run

    @property
    def is_training(self) -> bool:
        """Whether the run had a backward pass."""
        backward = self.replay.where(pl.col("direction") == "backward")
        return self.info.get("verb") == "train" or bool(backward.any())

    def tell_how(self, option: str, in_code: str) -> str:
        """An option of the command that made the run, or the same in somebody's own code."""
        return option if self.by_settings else in_code

    def alive_at_peak(self) -> Booleans:
        """Lives that make up the peak."""
        return np.asarray((self.replay.begin_ns <= self.peak_ns) & (self.replay.end_ns > self.peak_ns))

    def suggest_saving(self, title: str, changed: Replay | int, costs: str, how: str, **more: Any) -> Advice:
        """A change with the peak it would lead to, by replay or by figure."""
        peak = changed if isinstance(changed, int) else peak_of(changed)
        return Advice(
            about="memory",
            title=title,
            saves_bytes=self.peak_bytes - peak,
            saves_share=(self.peak_bytes - peak) / self.peak_bytes if self.peak_bytes else 0.0,
            peak_bytes=peak,
            costs=costs,
            how=how,
            **more,
        )


def stage_ms(spans: pl.DataFrame, stage: str, direction: str) -> float | None:
    """Milliseconds per step of a stage with its parts; None where no spans were recorded."""
    own = spans.filter(
        (pl.col("kind") == "stage")
        & (pl.col("direction") == direction)
        & ((pl.col("path") == stage) | pl.col("path").str.starts_with(f"{stage}."))
    )
    if not own.height:
        return None
    return float(own["total_ns"].sum()) / own["step"].n_unique() / 1e6


def about_ms(value: float | None) -> str:
    """`12.3 ms`, or that nobody knows."""
    return "cannot tell how many ms" if value is None else f"{value:.1f} ms"
