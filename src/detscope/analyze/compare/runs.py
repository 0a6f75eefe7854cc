"""Whole runs compared: what differs in how they were made, then what changed in what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detscope.analyze.compare.change import Change, change_of_steps, change_of_totals, discoveries
from detscope.analyze.compare.gate import Gate, judge
from detscope.analyze.compare.series import RunSeries, differing, matched_modules, same_content, series_of
from detscope.analyze.summary import summarize
from detscope.runs.reader import Run

# facts that differ between any two runs and explain nothing
_UNTELLING = ("time", "pid", "load", "available", "free", "uptime", "output.runs", "temperature")
_SHOWN = ("before", "after", "difference", "relative", "verdict")


def compare_runs(base: Run, others: Sequence[Run], gates: Sequence[Gate] = ()) -> dict[str, Any]:
    """Every other run against the first."""
    first, first_summary = series_of(base), summarize(base)
    comparisons = []
    for other in others:
        result = _compare(base, first, first_summary, other)
        result["gates"] = [judge(gate, result["figures"]) for gate in gates]
        comparisons.append(result)
    return {
        "base": str(base.folder),
        "comparisons": comparisons,
        "failed": [
            gate["gate"] for result in comparisons for gate in result["gates"] if gate["outcome"] == "failed"
        ],
    }


def _compare(base: Run, first: RunSeries, first_summary: Mapping[str, Any], other: Run) -> dict[str, Any]:
    second, second_summary = series_of(other), summarize(other)
    alike = same_content(first, second)
    step = change_of_steps(first.step, second.step, same_content=alike)
    modules = _module_rows(first, second, alike)
    figures: dict[str, dict[str, Any]] = {"step_p50": step.as_dict()}
    figures |= _named("phase", first.phases, second.phases, alike)
    figures |= _named("stage", first.stages, second.stages, alike)
    figures |= {f"module.{row['path']}": row for row in modules}
    figures |= _totals(first_summary, second_summary, step)
    return {
        "run": str(other.folder),
        "settings": _differences(base, other),
        "notes": _notes(base, other, alike),
        "paired": step.paired,
        "step": figures["step_p50"],
        "phases": _rows("phase", figures),
        "stages": _rows("stage", figures),
        "modules": modules,
        "memory": _rows("memory", figures),
        "accuracy": _rows("accuracy", figures),
        "verdict": _sentence(step, modules),
        "figures": figures,
    }


def _named(
    kind: str, first: Mapping[str, dict[int, float]], second: Mapping[str, dict[int, float]], alike: bool
) -> dict[str, dict[str, Any]]:
    names = [*first, *(name for name in second if name not in first)]
    changes = [
        change_of_steps(first.get(name, {}), second.get(name, {}), same_content=alike) for name in names
    ]
    return {
        f"{kind}.{name}": _with_care(change, real)
        for name, change, real in zip(names, changes, discoveries([c.chance for c in changes]), strict=True)
    }


def _with_care(change: Change, real: bool) -> dict[str, Any]:
    """Of many figures a few differ by luck: those are not named."""
    row = change.as_dict()
    if change.seen and not real:
        row["verdict"] = "no difference seen"
    return row


def _module_rows(first: RunSeries, second: RunSeries, alike: bool) -> list[dict[str, Any]]:
    """Modules by the size of their change; those whose change is real come first."""
    pairs = matched_modules(first, second)
    changes = [
        change_of_steps(
            first.modules.get(old or "", {}), second.modules.get(new or "", {}), same_content=alike
        )
        for old, new in pairs
    ]
    rows = []
    for (old, new), change, real in zip(
        pairs, changes, discoveries([c.chance for c in changes]), strict=True
    ):
        row = {"path": new or old, "was": old if old != new else None, **_with_care(change, real)}
        if old is None or new is None:
            row["verdict"] = "new" if old is None else "gone"
        rows.append(row)
    told = ("slower", "faster", "new", "gone")
    return sorted(rows, key=lambda row: (row["verdict"] not in told, -_size(row)))


def _size(row: Mapping[str, Any]) -> float:
    if row["difference"] is None:
        return float(row["before"] or row["after"] or 0.0)
    return abs(float(row["difference"]))


def _totals(first: Mapping[str, Any], second: Mapping[str, Any], step: Change) -> dict[str, dict[str, Any]]:
    """Figures a run has once: memory, accuracy, images per second."""
    found: dict[str, dict[str, Any]] = {}
    speed = change_of_totals(first.get("images_per_s"), second.get("images_per_s"))
    if speed.difference is not None:
        found["images_per_s"] = speed.as_dict("faster", "slower")
        if not step.seen:  # the same measurement seen from the other side: it cannot tell more
            found["images_per_s"]["verdict"] = step.verdict()
    memories = [_memory(summary) for summary in (first, second)]
    for name in [*memories[0], *(name for name in memories[1] if name not in memories[0])]:
        change = change_of_totals(memories[0].get(name), memories[1].get(name))
        found[f"memory.{name}"] = change.as_dict("more", "less")
    accuracies = [_accuracy(summary) for summary in (first, second)]
    for name in [name for name in accuracies[0] if name in accuracies[1]]:
        change = change_of_totals(accuracies[0][name], accuracies[1][name])
        found[f"accuracy.{name}"] = change.as_dict("better", "worse")
    return found


def _memory(summary: Mapping[str, Any]) -> dict[str, float]:
    memory = summary.get("memory") or {}
    figures = {"peak": memory["peak_bytes"]} if memory.get("peak_bytes") is not None else {}
    categories = memory.get("categories")
    if isinstance(categories, Mapping):
        figures |= {name: value for name, value in categories.items() if isinstance(value, int | float)}
    return figures


def _accuracy(summary: Mapping[str, Any]) -> dict[str, float]:
    accuracy = summary.get("accuracy") or {}
    figures = accuracy.get("figures", accuracy)
    if not isinstance(figures, Mapping):
        return {}
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name.startswith(("A", "m", "v"))
    }


def _rows(kind: str, figures: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    start = f"{kind}."
    return [
        {"name": name.removeprefix(start), **row} for name, row in figures.items() if name.startswith(start)
    ]


def _differences(base: Run, other: Run) -> list[dict[str, Any]]:
    """Settings, then environment; what differs between any two runs is left out."""
    found = []
    for key in ("settings", "model", "weights", "data", "environment"):
        one, two = (run.info.get(key) or {} for run in (base, other))
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            found += differing(one, two, "" if key == "settings" else f"{key}.")
    return [row for row in found if not any(word in row["key"].lower() for word in _UNTELLING)]


def _notes(base: Run, other: Run, alike: bool) -> list[str]:
    notes = []
    levels = [run.info.get("level") for run in (base, other)]
    if levels[0] != levels[1]:
        notes.append(f"levels differ ({levels[0]}, {levels[1]}): so does what recording itself costs")
    if not alike:
        notes.append("the runs fed different images or orders: steps are compared unpaired")
    notes += [f"{run.folder.name} is {run.status}" for run in (base, other) if run.status != "ok"]
    return notes


def _sentence(step: Change, modules: Sequence[Mapping[str, Any]]) -> str:
    """The verdict with its evidence."""
    word = step.verdict()
    if step.difference is None or step.low is None or step.high is None or not step.before:
        return word
    ends = f"[{step.low / step.before:+.1%}, {step.high / step.before:+.1%}]"
    sentence = f"{word}: the step changed by {step.difference / step.before:+.1%} {ends}"
    if modules and modules[0]["verdict"] in ("slower", "faster") and word in ("slower", "faster"):
        top = modules[0]
        sentence += f"; most in {top['path']} ({top['difference']:+.2f} ms of its own time)"
    return sentence
