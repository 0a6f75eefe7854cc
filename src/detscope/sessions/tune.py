"""`detscope tune` behind the command line: try the advice, one change at a time, between runs of the base."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from detscope.analyze.advice import advise_on_time
from detscope.analyze.advice.case import Advice, Setting
from detscope.analyze.compare.change import compare_steps
from detscope.analyze.summary import summarize
from detscope.analyze.sweep.tuning import (
    BestChange,
    Gain,
    TriedChange,
    TuneResult,
    list_image_times,
    measure_gain,
)
from detscope.config.load import dump_settings
from detscope.config.schema import Settings
from detscope.errors import DetscopeError, UsageError
from detscope.report.progress import Progress
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run, load_run
from detscope.sessions.train.training import run_training

LEAST_ROUNDS, MOST_ROUNDS = 2, 6
LEAST_GAIN = 0.02
_BUDGET = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h)$")


def parse_budget(text: str) -> float:
    """`90s`, `5m` or `1h` in seconds."""
    match = _BUDGET.match(text.strip())
    if match is None:
        raise UsageError(f"--budget {text!r} is not a time", "for example --budget 5m or --budget 90s")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def run_tuning(
    settings: Settings, *, budget_s: float, progress: Progress, notes: Sequence[str] = ()
) -> TuneResult:
    """Measure the base, take its advice, try each change interleaved with the base, keep what helped."""
    begin = time.monotonic()
    first = _measure(settings, progress, notes)
    each_s = time.monotonic() - begin
    advice = [row for row in advise_on_time(summarize(first), settings.model_dump()) if row.settings]
    if not advice:
        verdict = "no change of settings is worth trying by this run's figures"
        return TuneResult(base=str(first.folder), budget_s=budget_s, verdict=verdict)
    rounds = int((budget_s - each_s) / (each_s * (len(advice) + 1)))
    while len(advice) > 1 and rounds < LEAST_ROUNDS:  # fewer changes, each measured well
        advice = advice[:-1]
        rounds = int((budget_s - each_s) / (each_s * (len(advice) + 1)))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, rounds))
    progress.note(
        f"{len(advice)} changes, {rounds} rounds, about {each_s * rounds * (len(advice) + 1):.0f} s"
    )
    base: list[Run] = []
    changed: list[list[Run]] = [[] for _ in advice]
    failures: dict[int, str] = {}
    for number in range(rounds):
        base.append(_measure(settings, progress))
        for index in _order(len(advice), number):
            if index in failures:
                continue
            try:
                changed[index].append(_measure(with_changes(settings, _changes_of(advice[index])), progress))
            except DetscopeError as error:  # a change that cannot run here is an answer, too
                failures[index] = error.message
    tried = []
    for index, row in enumerate(advice):
        if index in failures:
            gain = Gain(verdict="cannot run", why=failures[index])
        else:
            gain = _measure_change(base, changed[index])
        tried.append(
            TriedChange(
                rule=row.rule,
                title=row.title,
                settings=_changes_of(row),
                estimated_gain=row.gain_share,
                runs=tuple(str(run.folder) for run in changed[index]),
                **msgspec.structs.asdict(gain),
            )
        )
    result = TuneResult(base=str(first.folder), budget_s=budget_s, tried=tuple(tried), verdict="")
    return _keep_best(settings, result, base, progress)


def _measure_change(base: Sequence[Run], changed: Sequence[Run]) -> Gain:
    return measure_gain(compare_steps(list_image_times(base), list_image_times(changed)))


def _changes_of(advice: Advice) -> dict[str, Setting | None]:
    return {change.key: change.value for change in advice.settings}


def with_changes(settings: Settings, changes: Mapping[str, Setting | None]) -> Settings:
    """Settings with some keys changed; checked as those of a file."""
    content = settings.model_dump()
    for dotted, value in changes.items():
        section, _, key = dotted.partition(".")
        content[section][key] = value
    return Settings.model_validate(content)


def _order(count: int, number: int) -> list[int]:
    """Every second round backwards, so that drift does not favour the first."""
    return list(range(count)) if number % 2 == 0 else list(reversed(range(count)))


def _keep_best(settings: Settings, result: TuneResult, base: Sequence[Run], progress: Progress) -> TuneResult:
    """All changes that helped, together, measured once more and written as a config file."""
    helped = [
        row for row in result.tried if row.verdict == "faster" and (row.measured_gain or 0.0) >= LEAST_GAIN
    ]
    if not helped:
        return msgspec.structs.replace(result, verdict="no change made it faster than noise")
    top = max(helped, key=lambda row: row.measured_gain or 0.0)
    changes = {key: value for row in helped for key, value in row.settings.items()}
    together: Gain = top
    if len(helped) > 1:
        best = with_changes(settings, changes)
        together = _measure_change(base, [_measure(best, progress) for _ in range(2)])
    if (together.measured_gain or 0.0) < (top.measured_gain or 0.0):
        together, changes = top, dict(top.settings)  # together they stand in each other's way
    path = Path(settings.output.runs) / "tuned.toml"
    write_text(path, dump_settings(with_changes(settings, changes), "train"))
    named = ", ".join(f"{key} = {value}" for key, value in changes.items())
    fields = {name: getattr(together, name) for name in Gain.__struct_fields__}
    return msgspec.structs.replace(
        result,
        config=str(path),
        best=BestChange(settings=changes, **fields),
        verdict=f"{together.measured_gain or 0.0:.0%} less time per image with {named}",
    )


def _measure(settings: Settings, progress: Progress, notes: Sequence[str] = ()) -> Run:
    return load_run(run_training(settings, progress=progress, notes=notes))
