"""What is wrong with a plan, one line each: unknown names with a suggestion, values that do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from detscope.config.toml import show_value
from detscope.sweep.axes import AXES, closest
from detscope.sweep.plan_settings import SECTIONS

_MOST_TOLD = 100  # more are no help, and a suggestion for each takes its time
_TABLES = (*SECTIONS, "axes")
_LISTS = ("trials", "exclude")
_COMPARISON = re.compile(r"(<|<=|>|>=) [0-9]{1,9}")
_NUMBERS = ("batch_size", "image_size", "num_workers", "prefetch_factor", "threads", "seed")


def check_plan(tables: Mapping[str, Any]) -> list[str]:
    """All problems of a plan's tables; none: it can be made."""
    return list(islice(_problems(tables), _MOST_TOLD))


def _problems(tables: Mapping[str, Any]) -> Iterator[str]:
    for name, content in tables.items():
        if name in _LISTS:
            if not isinstance(content, list) or not all(isinstance(row, Mapping) for row in content):
                yield f"{name}: expected [[{name}]] tables, got {show_value(content)}"
                continue
            for number, row in enumerate(content, 1):
                yield from _axis_problems(row, f"[[{name}]] {number}: ", comparisons=name == "exclude")
        elif name not in _TABLES:
            yield f"{_shown(name)}: no such section{closest(name, [*_TABLES, *_LISTS])}"
        elif not isinstance(content, Mapping):
            yield f"{name}: expected a section [{name}], got {show_value(content)}"
        elif name == "axes":
            yield from _axis_problems(content, "axes.")
        else:
            yield from _section_problems(name, content)
    yield from _whole_problems(tables)


def _section_problems(section: str, content: Mapping[str, Any]) -> Iterator[str]:
    known = SECTIONS[section]
    for name, value in content.items():
        if name not in known:
            home = next((other for other, keys in SECTIONS.items() if name in keys), None)
            home = home or ("axes" if name in AXES else None)
            hint = f"; it belongs in [{home}]" if home else closest(name, list(known))
            yield f"{section}.{_shown(name)}: no such key{hint}"
        elif not known[name].fits(value):
            hint = closest(value, list(known[name].choices))
            yield f"{section}.{name}: expected {known[name].expected}, got {show_value(value)}{hint}"


def _axis_problems(content: Mapping[str, Any], where: str, comparisons: bool = False) -> Iterator[str]:
    for name, given in content.items():
        if name not in AXES:
            home = next((section for section, keys in SECTIONS.items() if name in keys), None)
            hint = f"; it belongs in [{home}]" if home else closest(name, list(AXES))
            yield f"{where}{_shown(name)}: no such axis{hint}"
            continue
        values = given if isinstance(given, list) else [given]
        if not values:
            yield f"{where}{name}: an empty list gives no trials"
        for value in values:
            axis = AXES[name]
            if axis.fits(value) or (comparisons and _may_exclude(name, value)):
                continue
            hint = closest(value, list(axis.choices))
            yield f"{where}{name}: expected {axis.expected}, got {show_value(value)}{hint}"


def _may_exclude(name: str, value: object) -> bool:
    """Excludes also take patterns of texts, and comparisons of numbers."""
    if not isinstance(value, str):
        return False
    return _COMPARISON.fullmatch(value) is not None if name in _NUMBERS else "*" in value


def _whole_problems(tables: Mapping[str, Any]) -> Iterator[str]:
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


def _shown(name: str) -> str:
    return name if name.replace("-", "_").isidentifier() and name.isascii() else show_value(name)
