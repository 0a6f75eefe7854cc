"""Plans: a TOML file with axes, lists and excludes becomes trials in an order; all problems at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from detscope.config.toml import read_toml, show_value
from detscope.errors import SettingsError, UsageError
from detscope.limits import require_within
from detscope.machine.sizes import parse_size
from detscope.sweep.axes import AXES, split_device
from detscope.sweep.plan_check import check_plan
from detscope.sweep.plan_settings import Limits, Measure


@dataclass(frozen=True)
class Trial:
    """One configuration, once: values of all axes and the number of its repetition."""

    values: Mapping[str, Any]
    repetition: int = 0

    @property
    def network(self) -> str:
        """As the plan names it."""
        return str(self.values["network"])

    @property
    def batch_size(self) -> int:
        """Images per step."""
        return int(self.values["batch_size"])

    @property
    def device(self) -> str:
        """Label and device, which together are one place where one trial runs at a time."""
        return str(self.values["device"])

    @property
    def label(self) -> str:
        """The machine that is to run it, or "" for whichever this is."""
        return split_device(self.device)[0] or ""

    @property
    def group(self) -> tuple[object, ...]:
        """Trials that differ in batch size and repetition alone."""
        return tuple(value for name, value in self.values.items() if name != "batch_size")

    def words(self) -> str:
        """The trial in a few words, for messages."""
        parts = [self.network, str(self.values["stage"]), f"batch {self.batch_size}"]
        if self.values.get("image_size"):
            parts.append(f"{self.values['image_size']} px")
        return " ".join(parts + ([f"repetition {self.repetition + 1}"] if self.repetition else []))


@dataclass(frozen=True)
class Plan:
    """What is to be measured, in which order, within which limits, kept where."""

    name: str
    folder: Path  # relative networks and the store are looked for here
    store: Path
    trials: tuple[Trial, ...]
    excluded: int
    limits: Limits
    measure: Measure
    isolation: str
    till_first_fail: bool
    text: str


def load_plan(path: Path, store: Path | None = None) -> Plan:
    """Read a plan; a SettingsError lists everything that is wrong with it."""
    tables = read_toml(path)
    problems = check_plan(tables)
    if problems:
        raise SettingsError([f"{path}: {problem}" for problem in problems], "see docs/sweeps.md for the keys")
    return make_plan(tables, path, store)


def make_plan(tables: Mapping[str, Any], path: Path, store: Path | None = None) -> Plan:
    """The plan of tables that have been checked."""
    general = tables.get("sweep", {})
    folder = path.absolute().parent
    repetitions = general.get("repetitions", 1)
    grids = _grids(tables, folder)
    combinations = sum(prod(map(len, grid.values())) for grid in grids)
    require_within("plan_trials", combinations * repetitions, f"{path}", UsageError)
    excludes = tables.get("exclude", [])
    compared = sum(
        len(value) if isinstance(value, list) else 1 for rule in excludes for value in rule.values()
    )
    require_within("plan_comparisons", combinations * compared, f"{path}: [[exclude]]", UsageError)
    points = list(_points(grids))
    kept = [point for point in points if not any(_matches(point, rule) for rule in excludes)]
    if not kept:
        raise UsageError(f"{path}: the plan has no trials", "loosen [[exclude]], or give [axes] more values")
    ordered = _ordered(kept, repetitions, general.get("order", "batch"), general.get("seed", 0))
    limits = dict(tables.get("limits", {}))
    if "memory" in limits:
        limits["memory_bytes"] = parse_size(limits.pop("memory"))
    return Plan(
        name=general.get("name", path.stem),
        folder=folder,
        store=store or folder / general.get("store", f"{path.stem}.db"),
        trials=tuple(ordered),
        excluded=len(points) - len(kept),
        limits=Limits(**limits),
        measure=Measure(**tables.get("measure", {})),
        isolation=general.get("isolation", "process"),
        till_first_fail=general.get("till_first_fail", False),
        text=path.read_text(encoding="utf-8-sig"),
    )


def _grids(tables: Mapping[str, Any], folder: Path) -> list[dict[str, list[Any]]]:
    """The values of every axis, of [axes] and of every [[trials]]; nothing is combined yet."""
    axes = tables.get("axes", {})
    shared = {name: value for name, value in axes.items() if not isinstance(value, list) or len(value) == 1}
    grids = [axes] if "network" in axes else []
    grids += [shared | row for row in tables.get("trials", [])]
    found: dict[str, Sequence[str]] = {}
    return [_columns(grid, folder, found) for grid in grids]


def _columns(axes: Mapping[str, Any], folder: Path, found: dict[str, Sequence[str]]) -> dict[str, list[Any]]:
    columns = {}
    for name, axis in AXES.items():
        given = axes.get(name, [axis.default])
        values = given if isinstance(given, list) else [given]
        if name == "network":
            for value in values:
                if value not in found:
                    found[value] = _networks(value, folder)
            values = [network for value in values for network in found[value]]
        columns[name] = values
    return columns


def _points(grids: Sequence[Mapping[str, list[Any]]]) -> Iterator[dict[str, Any]]:
    """All combinations of every grid; each configuration once."""
    seen: set[tuple[object, ...]] = set()
    for grid in grids:
        for point in product(*grid.values()):
            if point not in seen:
                seen.add(point)
                yield dict(zip(grid, point, strict=True))


def _networks(text: str, folder: Path) -> Sequence[str]:
    """Folders that a pattern such as `pruned/*` means, as written relative to the plan."""
    if not any(char in text for char in "*?["):
        return [text]
    if "**" in text:  # of the whole disk, perhaps
        raise UsageError(f"network {show_value(text)}: ** is not a pattern here", 'as in "pruned/*"')
    pattern = Path(text)
    base = Path(pattern.anchor) if pattern.is_absolute() else folder
    relative = str(pattern.relative_to(pattern.anchor)) if pattern.is_absolute() else text
    found = sorted(path for path in base.glob(relative) if path.is_dir())
    if not found:
        raise UsageError(f"no folder of a network matches {text!r}", f"it was looked for in {base}")
    return [str(path) if pattern.is_absolute() else path.relative_to(folder).as_posix() for path in found]


def _matches(point: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    return all(_one_of(point[name], wanted) for name, wanted in rule.items())


def _one_of(value: object, wanted: object) -> bool:
    if isinstance(wanted, list):
        return any(_one_of(value, one) for one in wanted)
    if isinstance(value, str) and isinstance(wanted, str):
        return fnmatchcase(value, wanted)
    if isinstance(wanted, str) and isinstance(value, int):  # ">= 64"
        sign, number = wanted.split()
        return {"<": value < int(number), "<=": value <= int(number)}.get(
            sign, value > int(number) if sign == ">" else value >= int(number)
        )
    return type(value) is type(wanted) and value == wanted


def _ordered(points: list[dict[str, Any]], repetitions: int, order: str, seed: int) -> list[Trial]:
    """Batch ascending within a network, so that the first that does not fit says what larger ones would."""
    places = {tuple(_without_batch(point)): index for index, point in reversed(list(enumerate(points)))}
    points = sorted(points, key=lambda point: (places[tuple(_without_batch(point))], point["batch_size"]))
    trials = [Trial(point, number) for number in range(repetitions) for point in points]
    if order == "random":
        random.Random(seed).shuffle(trials)
    return trials


def _without_batch(point: Mapping[str, Any]) -> list[object]:
    return [value for name, value in point.items() if name != "batch_size"]
