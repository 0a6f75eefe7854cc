"""What the page of a sweep shows beside its curves: what ran, how it ended, what was unstable, where."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from detscope.analyze.sweep.figures import GROUP, short_name, sweep_figures

Row = Mapping[str, Any]
FAILED_ONES = ("oom_host", "oom_device", "timeout", "crashed", "exited", "error")
_AXES = (
    "stage", "device", "batch_size", "image_pixels", "precision", "optimizer", "torch_threads",
    "num_workers", "channels_last", "seed", "repetition",
)  # fmt: skip
_MOST_VALUES = 12


def sweep_page(rows: Sequence[Row], status: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of the page; `status` is how far the sweep is, by its store."""
    figures = sweep_figures(rows)
    # curves and tables by name: in a random order of trials nothing is found
    figures["groups"].sort(key=lambda group: in_words(group["name"]))
    return {
        **figures,
        "status": status,
        "networks": [_network(name, rows) for name in sorted({row["network"] for row in rows}, key=in_words)],
        "axes": _axes(rows),
        "endings": Counter(str(row["kind"]) for row in rows).most_common(),
        "failures": [_failure(row) for row in rows if row["kind"] != "ok"],
        "unstable": unstable_points(figures["groups"], rows),
        "environments": _environments(rows),
        "measured_s": sum(float(row.get("seconds") or 0.0) for row in rows),
        "from_to": _from_to(rows),
    }


def in_words(name: object) -> list[tuple[int, str]]:
    """Sorts p5 before p30: figures inside a name count as figures."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(name)) if part
    ]


def is_unstable(row: Row) -> bool:
    """Measured, but the interval stayed wider than asked for, or the steps went on changing."""
    if row["kind"] != "ok" or row.get("step_ms") is None:
        return False
    return row.get("interval_reached") == 0 or str(row.get("stability") or "stable") != "stable"


def unstable_points(groups: Sequence[Row], rows: Sequence[Row]) -> dict[str, list[int]]:
    """Batch sizes of each curve, by its name, whose latency is to be read with care."""
    marked: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        if is_unstable(row):
            marked.setdefault(tuple(row.get(key) for key in GROUP), set()).add(int(row["batch_size"]))
    found: dict[str, list[int]] = {}
    for group in groups:
        batches = marked.get(tuple(group.get(key) for key in GROUP))
        if batches:
            name = str(group["name"])
            found[name] = sorted({*found.get(name, ()), *batches})
    return found


def _network(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    own = [row for row in rows if row["network"] == name]
    measured = [row for row in own if row["kind"] == "ok"]
    rates = [row["images_per_s"] for row in measured if row.get("images_per_s")]
    return {
        "name": short_name(name),
        "network": name,
        "parameters": next((row["parameters"] for row in own if row.get("parameters")), None),
        "measured": len(measured),
        "failed": sum(row["kind"] in FAILED_ONES for row in own),
        "skipped": sum(row["kind"] == "skipped" for row in own),
        "largest_batch": max((row["batch_size"] for row in measured), default=None),
        "best_images_per_s": max(rates, default=None),
    }


def _axes(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What was varied and what was the same, in words."""
    found = []
    for name in _AXES:
        values = sorted({row[name] for row in rows if row.get(name) is not None}, key=_order)
        if values:
            words = ", ".join(str(value) for value in values[:_MOST_VALUES])
            more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
            found.append((name.replace("_", " "), words + more))
    return found


def _order(value: object) -> tuple[bool, float, str]:
    return (True, float(value), "") if isinstance(value, int | float) else (False, 0.0, str(value))


def _failure(row: Row) -> dict[str, Any]:
    keys = ("network", "stage", "device", "batch_size", "kind", "status", "message", "attempt")
    return {key: row.get(key) for key in keys} | {"name": short_name(row["network"])}


def _environments(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Facts of every environment with how many rows it has."""
    counts = Counter(str(row.get("environment")) for row in rows)
    facts = {str(row.get("environment")): row.get("environment_facts") or {} for row in rows}
    return [{"rows": count, "facts": flat("", facts[key])} for key, count in counts.most_common()]


def flat(name: str, value: Any) -> list[tuple[str, str]]:
    """Nested facts as lines of a dotted name and a text; what is empty is left out."""
    if isinstance(value, Mapping):
        return [
            line
            for key, inner in value.items()
            for line in flat(f"{name}.{key}" if name else str(key), inner)
        ]
    if value is None or value == "" or value == []:
        return []
    return [(name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))]


def _from_to(rows: Sequence[Row]) -> tuple[str, str] | None:
    ends = sorted(str(row["ended_at"]) for row in rows if row.get("ended_at"))
    return (ends[0], ends[-1]) if ends else None
