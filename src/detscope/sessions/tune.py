"""`detscope tune` behind the command line: the advice of a run is tried as `detscope try` tries a change."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from detscope.analyze.advice import advise_on_time
from detscope.analyze.advice.case import Advice, Setting
from detscope.analyze.compare.differences import SettingValue
from detscope.analyze.compare.trying import LEAST_PAIRS, LEAST_ROUNDS, Attempt
from detscope.analyze.summary import summarize
from detscope.analyze.sweep.tuning import BestChange, TriedChange, TuneResult
from detscope.config.load import dump_settings
from detscope.config.schema import Settings
from detscope.report.progress import Progress
from detscope.runs.atomic import write_text
from detscope.sessions.trying.processes import (
    TriedSide,
    Turns,
    conclude,
    detscope_command,
    name_folder,
    record_once,
    take_turns,
)

MOST_ROUNDS = 12
ANY_RESULT = float("inf")  # settings change losses by design


def run_tuning(
    settings: Settings, *, budget_s: float, progress: Progress, notes: Sequence[str] = ()
) -> TuneResult:
    """Measure the base, take its advice, try each change by turns with the base, keep what helped."""
    begin = time.monotonic()
    folder = name_folder(Path(settings.output.runs), "tune")
    base = _make_side(settings, folder, "base")
    for note in notes:
        progress.note(note)
    words = [*base.command[: base.command.index("--level")], "--quiet", *base.command[-2:]]
    first = record_once(words, base.folder, folder / "output.txt")  # with modules: advice is about them
    each_s = time.monotonic() - begin
    advice = [row for row in advise_on_time(summarize(first), settings.model_dump()) if row.settings]
    result = TuneResult(base=str(first.folder), budget_s=budget_s, verdict="")
    if not advice:
        why = "no change of settings is worth trying by this run's figures"
        return msgspec.structs.replace(result, verdict=why)
    while len(advice) > 1 and _count_rounds(budget_s, each_s, len(advice)) < LEAST_PAIRS:
        advice = advice[:-1]  # fewer changes, each measured well
    turns = Turns(min(MOST_ROUNDS, max(LEAST_ROUNDS, _count_rounds(budget_s, each_s, len(advice)))), budget_s)
    progress.note(f"{len(advice)} changes, at most {turns.rounds} rounds, about {each_s:.0f} s for each run")
    changed = [_make_side(with_changes(settings, _changes_of(row)), folder, row.rule) for row in advice]
    take_turns(base, changed, turns, folder / "output.txt", progress, ANY_RESULT)
    tried = tuple(
        TriedChange(
            rule=row.rule,
            title=row.title,
            settings=_changes_of(row),
            estimated_gain=row.gain_share,
            **msgspec.structs.asdict(conclude(base, side, ANY_RESULT)),
        )
        for row, side in zip(advice, changed, strict=True)
    )
    result = msgspec.structs.replace(result, tried=tried)
    helped = [row for row in tried if row.verdict == "accept"]
    if not helped:
        return msgspec.structs.replace(result, verdict="no change made it faster beyond doubt")
    best = max(helped, key=_gain_of)
    kept = _keep(best.settings, best)
    if len(helped) > 1:
        together = _try_together(settings, helped, turns, folder, progress)
        kept = together if together.verdict == "accept" and _gain_of(together) > _gain_of(kept) else kept
    return _keep_best(settings, result, kept)


def _count_rounds(budget_s: float, each_s: float, changes: int) -> int:
    return int((budget_s - each_s) / (each_s * (changes + 1)))


def _make_side(settings: Settings, folder: Path, name: str) -> TriedSide:
    """A training of these settings; they go by a file, so that nothing is lost on the way."""
    config, out = folder / f"{name}.toml", folder / name
    folder.mkdir(parents=True, exist_ok=True)
    write_text(config, dump_settings(settings, "train"))
    words = [*detscope_command(), "train", "--out", str(out), "--level", "phases", "--quiet"]
    return TriedSide([*words, "--config", str(config)], out)


def _changes_of(advice: Advice) -> dict[str, Setting | None]:
    return {change.key: change.value for change in advice.settings}


def with_changes(settings: Settings, changes: Mapping[str, Setting | None]) -> Settings:
    """Settings with some keys changed; checked as those of a file."""
    content = settings.model_dump()
    for dotted, value in changes.items():
        section, _, key = dotted.partition(".")
        content[section][key] = value
    return Settings.model_validate(content)


def _gain_of(row: Attempt) -> float:
    return row.time.gain if row.time else 0.0


def _keep(settings: dict[str, SettingValue], row: Attempt) -> BestChange:
    return BestChange(settings=settings, **{name: getattr(row, name) for name in Attempt.__struct_fields__})


def _try_together(
    settings: Settings, helped: Sequence[TriedChange], turns: Turns, folder: Path, progress: Progress
) -> BestChange:
    """All changes that helped, together, tried once more: they may stand in each other's way."""
    changes = {key: value for row in helped for key, value in row.settings.items()}
    base, side = (
        _make_side(one, folder, name)
        for one, name in ((settings, "base-again"), (with_changes(settings, changes), "together"))
    )
    take_turns(base, [side], turns, folder / "output.txt", progress, ANY_RESULT)
    return _keep(changes, conclude(base, side, ANY_RESULT))


def _keep_best(settings: Settings, result: TuneResult, best: BestChange) -> TuneResult:
    """What is best as a config file."""
    path = Path(settings.output.runs) / "tuned.toml"
    write_text(path, dump_settings(with_changes(settings, best.settings), "train"))
    named = ", ".join(f"{key} = {value}" for key, value in best.settings.items())
    return msgspec.structs.replace(
        result, config=str(path), best=best, verdict=f"{_gain_of(best):.0%} less time per image with {named}"
    )
