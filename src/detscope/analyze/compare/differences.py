"""What differs in how two runs were made, the telling first: code, command, device, versions, batch, data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from detscope.analyze.compare.variation import fingerprint_machine
from detscope.analyze.figure import Figure
from detscope.runs.reader import Run
from detscope.runs.standard_json import Json

# facts that differ between any two runs and explain nothing
_UNTELLING = ("time", "pid", "load", "available", "free", "uptime", "output.", "temperature", "clock_mhz")
_WHOLE = ("verb", "device", "precision", "batch_size", "num_workers", "level", "repeat", "score")
_PARTS = ("script", "settings", "model", "weights", "data", "recipe", "environment")
# the words that a key begins with, in the order in which one asks
_ORDER = (
    "environment.code", "verb", "script.command", "script", "device", "environment.accelerator",
    "environment.gpus", "environment.torch_cuda", "environment.packages", "batch_size", "training.batch_size",
    "precision", "model", "weights", "data", "num_workers", "environment.threads", "training", "level",
)  # fmt: skip
_SCRIPT = ("command", "name")  # of what run.json says about a script; the rest are figures
SettingValue = str | int | float | bool | None

WITHOUT_MODULES = ("bare", "phases")  # levels that hear no module


class SettingChange(Figure, frozen=True, kw_only=True):
    """A setting or fact that differs between two runs."""

    key: str  # its dotted name
    before: SettingValue  # None where the first run has none
    after: SettingValue  # None where the later run has none


def find_differences(base: Run, other: Run) -> list[SettingChange]:
    """What differs between two runs, the telling first; what differs between any two is left out."""
    whole: list[Mapping[str, Json]] = [{key: run.info.get(key) for key in _WHOLE} for run in (base, other)]
    found = [*_walk_differences(whole[0], whole[1], "")]
    for key in _PARTS:
        one, two = (_read_part(run, key) for run in (base, other))
        found += _walk_differences(one, two, "" if key == "settings" else f"{key}.")
    telling = [row for row in found if not any(word in row.key.lower() for word in _UNTELLING)]
    unique = {row.key: row for row in telling}
    return sorted(unique.values(), key=lambda row: _rank_key(row.key))


def _read_part(run: Run, key: str) -> Mapping[str, Json]:
    found = run.info.get(key) or {}
    if not isinstance(found, Mapping):
        return {}
    return {name: found.get(name) for name in _SCRIPT} if key == "script" and found else found


def _rank_key(key: str) -> int:
    return next((rank for rank, word in enumerate(_ORDER) if key.startswith(word)), len(_ORDER))


def _walk_differences(
    first: Mapping[str, Json], second: Mapping[str, Json], prefix: str
) -> Iterator[SettingChange]:
    """Keys whose values differ, as dotted names; what one side lacks is None."""
    for key in [*first, *(key for key in second if key not in first)]:
        one, other, name = _open_list(first.get(key)), _open_list(second.get(key)), f"{prefix}{key}"
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _walk_differences(one, other, f"{name}.")
        elif one != other:
            yield SettingChange(key=name, before=_setting_value(one), after=_setting_value(other))


def _open_list(value: Json) -> Json:
    """A list of objects by their numbers; words are told as one line."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping) for one in value):
            return {str(number): one for number, one in enumerate(value)}
        return " ".join(map(str, value))
    return value


def _setting_value(value: Json) -> SettingValue:
    return value if isinstance(value, SettingValue) else str(value)


def list_notes(base: Run, other: Run, alike: bool) -> list[str]:
    """What is to be known when reading the figures."""
    notes = []
    if fingerprint_machine(base) != fingerprint_machine(other):
        notes.append("the runs are of two machines: a change may be the machine's")
    levels = [run.info.get("level") for run in (base, other)]
    if levels[0] != levels[1]:
        notes.append(f"levels differ ({levels[0]}, {levels[1]}): so does what recording itself costs")
        if any(level in WITHOUT_MODULES for level in levels):
            notes.append("stages and modules are not compared: one of the runs did not record any")
    if not alike:
        notes.append("the runs fed different images or orders: steps are compared unpaired")
    notes += [f"{run.folder.name} is {run.status}" for run in (base, other) if run.status != "ok"]
    return notes
