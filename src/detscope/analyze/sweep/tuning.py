"""What tuning told: each piece of advice as it was tried, estimate beside measurement, and what is best."""

from __future__ import annotations

from detscope.analyze.compare.differences import SettingValue
from detscope.analyze.compare.trying import Attempt
from detscope.analyze.figure import Figure


class TriedChange(Attempt, frozen=True, kw_only=True):
    """One piece of advice, tried."""

    rule: str  # which rule gave it
    title: str  # in words
    settings: dict[str, SettingValue]  # what was set
    estimated_gain: float | None = None  # what it promised


class BestChange(Attempt, frozen=True, kw_only=True):
    """What is kept in the config that was written."""

    settings: dict[str, SettingValue]  # what was set


class TuneResult(Figure, frozen=True, kw_only=True):
    """Everything that a tuning tried, and what is best."""

    base: str  # folder of the first run
    budget_s: float  # how long it was allowed to try
    tried: tuple[TriedChange, ...] = ()  # one row per change
    config: str | None = None  # the file with the best settings; None where nothing helped
    best: BestChange | None = None  # what was kept; None where nothing helped
    verdict: str  # in a sentence
