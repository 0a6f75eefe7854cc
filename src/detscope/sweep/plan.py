"""Plans: a TOML file with axes, lists and excludes becomes trials in an order; all problems at once."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from detscope.config.toml import read_toml, show_value
from detscope.errors import SettingsError, UsageError
from detscope.limits import require_within
from detscope.machine.limits import parse_size
from detscope.sweep.settings import (
    AXES,
    SECTIONS,
    MeasureRules,
    PlanKey,
    TrialLimits,
    split_device,
    suggest_closest,
)

_MOST_TOLD = 100  # more are no help, and a suggestion for each takes its time
_TABLES = (*SECTIONS, "axes")
_LISTS = ("trials", "exclude")
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_COMPARISON = re.compile(r"(<|<=|>|>=) [0-9]{1,9}")
_NUMBERS = ("batch_size", "image_size", "num_workers", "prefetch_factor", "threads", "seed")


def check_plan(tables: Mapping[str, Any]) -> list[str]:
    """All problems of a plan's tables; none: it can be made."""
    return list(islice(_find_problems(tables), _MOST_TOLD))


def _find_problems(tables: Mapping[str, Any]) -> Iterator[str]:
    for name, content in tables.items():
        if name in _LISTS:
            if not isinstance(content, list) or not all(isinstance(row, Mapping) for row in content):
                yield f"{name}: expected [[{name}]] tables, got {show_value(content)}"
                continue
            for number, row in enumerate(content, 1):
                where = f"[[{name}]] {number}: "
                yield from _check_keys(AXES, row, where, comparisons=name == "exclude")
        elif name not in _TABLES:
            yield f"{_show_name(name)}: no such section{suggest_closest(name, [*_TABLES, *_LISTS])}"
        elif not isinstance(content, Mapping):
            yield f"{name}: expected a section [{name}], got {show_value(content)}"
        else:
            yield from _check_keys(SECTIONS.get(name, AXES), content, f"{name}.")
    yield from _check_whole(tables)


def _check_keys(
    known: Mapping[str, PlanKey], content: Mapping[str, Any], where: str, *, comparisons: bool = False
) -> Iterator[str]:
    """Keys of a section, which have one value, or axes, which may have a list of them."""
    axes = known is AXES
    for name, given in content.items():
        if name not in known:
            home = next((section for section, keys in SECTIONS.items() if name in keys), None)
            home = home or ("axes" if name in AXES else None)
            hint = f"; it belongs in [{home}]" if home else suggest_closest(name, list(known))
            yield f"{where}{_show_name(name)}: no such {'axis' if axes else 'key'}{hint}"
            continue
        values = given if axes and isinstance(given, list) else [given]
        if not values:
            yield f"{where}{name}: an empty list gives no trials"
        for value in values:
            allowed = known[name].fits(value)
            if comparisons and isinstance(value, str):  # also patterns of texts, comparisons of numbers
                pattern = _COMPARISON.fullmatch(value) if name in _NUMBERS else "*" in value
                allowed = allowed or bool(pattern)
            if not allowed:
                hint = suggest_closest(value, list(known[name].choices))
                yield f"{where}{name}: expected {known[name].expected}, got {show_value(value)}{hint}"


def _check_whole(tables: Mapping[str, Any]) -> Iterator[str]:
    axes = tables.get("axes", {})
    rows = tables.get("trials", [])
    if isinstance(axes, Mapping) and not _is_shared(axes.get("network")):
        if not rows and "network" not in axes:
            yield 'axes.network: a plan needs networks, as in network = ["resnet18"]'
        elif isinstance(rows, list):
            for number, row in enumerate(rows, 1):
                if isinstance(row, Mapping) and "network" not in row:
                    yield f"[[trials]] {number}: network: missing here and in [axes]"
    measure = tables.get("measure", {})
    if isinstance(measure, Mapping):
        low, high = measure.get("min_steps", 6), measure.get("max_steps", 200)
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield f"measure.min_steps: expected at most max_steps ({high}), got {low}"


def _is_shared(value: object) -> bool:
    """Whether rows of trials take this value of [axes]: one alone."""
    return value is not None and (not isinstance(value, list) or len(value) == 1)


def _show_name(name: str) -> str:
    return name if name.replace("-", "_").isidentifier() and name.isascii() else show_value(name)


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
    def machine_label(self) -> str:
        """The machine that is to run it, or "" for whichever this is."""
        return split_device(self.device)[0] or ""

    @property
    def group_key(self) -> tuple[object, ...]:
        """Trials that differ in batch size and repetition alone."""
        return tuple(value for name, value in self.values.items() if name != "batch_size")

    def describe_trial(self) -> str:
        """The trial in a few words, for messages."""
        parts = [self.network, str(self.values["stage"]), f"batch {self.batch_size}"]
        if self.values.get("image_size"):
            parts.append(f"{self.values['image_size']} px")
        return " ".join(parts + ([f"repetition {self.repetition + 1}"] if self.repetition else []))


@dataclass(frozen=True)
class SweepPlan:
    """What is to be measured, in which order, within which limits, kept where."""

    name: str
    folder: Path  # relative networks and the store are looked for here
    store: Path
    trials: tuple[Trial, ...]
    excluded: int
    limits: TrialLimits
    measure: MeasureRules
    isolation: str
    till_first_fail: bool
    text: str


def load_plan(path: Path, store: Path | None = None) -> SweepPlan:
    """Read a plan; a SettingsError lists everything that is wrong with it."""
    tables = read_toml(path)
    problems = check_plan(tables)
    if problems:
        raise SettingsError([f"{path}: {problem}" for problem in problems], "see docs/sweeps.md for the keys")
    return make_plan(tables, path, store)


def make_plan(tables: Mapping[str, Any], path: Path, store: Path | None = None) -> SweepPlan:
    """The plan of tables that have been checked."""
    general = tables.get("sweep", {})
    folder = path.absolute().parent
    repetitions = general.get("repetitions", 1)
    grids = _list_grids(tables, folder)
    combinations = sum(prod(map(len, grid.values())) for grid in grids)
    require_within("plan_trials", combinations * repetitions, f"{path}", UsageError)
    excludes = tables.get("exclude", [])
    compared = sum(
        len(value) if isinstance(value, list) else 1 for rule in excludes for value in rule.values()
    )
    require_within("plan_comparisons", combinations * compared, f"{path}: [[exclude]]", UsageError)
    combined = {point: grid for grid in grids for point in product(*grid.values())}  # each once
    points = [dict(zip(grid, point, strict=True)) for point, grid in combined.items()]
    kept = [
        point
        for point in points
        if not any(all(_matches_value(point[name], one) for name, one in rule.items()) for rule in excludes)
    ]
    if not kept:
        raise UsageError(f"{path}: the plan has no trials", "loosen [[exclude]], or give [axes] more values")
    ordered = _order_trials(kept, repetitions, general.get("order", "batch"), general.get("seed", 0))
    limits = dict(tables.get("limits", {}))
    if "memory" in limits:
        limits["memory_bytes"] = parse_size(limits.pop("memory"))
    return SweepPlan(
        name=general.get("name", path.stem),
        folder=folder,
        store=store or folder / general.get("store", f"{path.stem}.db"),
        trials=tuple(ordered),
        excluded=len(points) - len(kept),
        limits=TrialLimits(**limits),
        measure=MeasureRules(**tables.get("measure", {})),
        isolation=general.get("isolation", "process"),
        till_first_fail=general.get("till_first_fail", False),
        text=path.read_text(encoding="utf-8-sig"),
    )


def _list_grids(tables: Mapping[str, Any], folder: Path) -> list[dict[str, list[Any]]]:
    """The values of every axis, of [axes] and of every [[trials]]; nothing is combined yet."""
    axes = tables.get("axes", {})
    shared = {name: value for name, value in axes.items() if _is_shared(value)}
    grids = [axes] if "network" in axes else []
    grids += [shared | row for row in tables.get("trials", [])]
    expand = lru_cache(maxsize=None)(partial(_expand_networks, folder=folder))
    filled = []
    for grid in grids:
        columns = {}
        for name, axis in AXES.items():
            given = grid.get(name, [axis.default])
            columns[name] = given if isinstance(given, list) else [given]
        columns["network"] = [network for value in columns["network"] for network in expand(value)]
        filled.append(columns)
    return filled


def _expand_networks(text: str, folder: Path) -> Sequence[str]:
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


def _matches_value(value: object, wanted: object) -> bool:
    if isinstance(wanted, list):
        return any(_matches_value(value, one) for one in wanted)
    if isinstance(value, str) and isinstance(wanted, str):
        return fnmatchcase(value, wanted)
    if isinstance(wanted, str) and isinstance(value, int):  # ">= 64"
        sign, number = wanted.split()
        return bool(_COMPARISONS[sign](value, int(number)))
    return type(value) is type(wanted) and value == wanted


def _order_trials(points: list[dict[str, Any]], repetitions: int, order: str, seed: int) -> list[Trial]:
    """Batch ascending within a network, so that the first that does not fit says what larger ones would."""
    once = [Trial(point) for point in points]
    places = {trial.group_key: index for index, trial in reversed(list(enumerate(once)))}
    once.sort(key=lambda trial: (places[trial.group_key], trial.batch_size))
    trials = [replace(trial, repetition=number) for number in range(repetitions) for trial in once]
    if order == "random":
        random.Random(seed).shuffle(trials)
    return trials
