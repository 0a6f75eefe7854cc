"""Pictures of a comparison: intervals beneath each other, and the modules coloured by their change."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.compare.change import Change, ModuleChange
from detscope.analyze.figure import Clock
from detscope.analyze.step.modules import ROOT
from detscope.report.colours import BLUE, GREY, RED, paler
from detscope.report.figures import signed_percent
from detscope.report.model import Axis, Chart, Series, Tone, Tree

MOST_INTERVALS = 30
MOST_MODULES = 400  # of the flame chart; the rest is in the table
_WIDEST = 2.0  # an interval beyond +200 % is drawn to there
_STRONGEST = 0.5  # a change from which on a colour is at its fullest
TONES: dict[str, Tone] = {
    **dict.fromkeys(("slower", "more", "worse"), "bad"),
    **dict.fromkeys(("faster", "less", "better"), "good"),
}
_COLOURS = {"bad": RED, "good": BLUE}


def forest_plot(number: int, named: Sequence[tuple[str, Change]]) -> list[Chart]:
    """Changes with their intervals, one beneath the other; those that were told are never left out."""
    # what is too small to judge has no chance, and an interval that would hide the rest
    known = [(name, row) for name, row in named if row.chance is not None and row.relative_ci95 is not None]
    told = sum(row.is_seen for _, row in known)
    room = max(0, MOST_INTERVALS - told)
    shown = []
    for name, row in known:
        if row.is_seen or room > 0:
            shown.append((name, row))
            room -= not row.is_seen
    if not shown:
        return []
    ends = [[100 * min(end, _WIDEST) for end in row.relative_ci95 or (0.0, 0.0)] for _, row in shown]
    changes = [100 * min(row.relative or 0.0, _WIDEST) for _, row in shown]
    series = Series(
        "change",
        changes,
        [name for name, _ in shown],
        [_colour_row(row) for _, row in shown],
        "points",
        details=[_describe_row(name, row) for name, row in shown],
        error_up=[high - change for (_, high), change in zip(ends, changes, strict=True)],
        error_down=[change - low for (low, _), change in zip(ends, changes, strict=True)],
    )
    label = "Changes and their 95 % intervals, in per cent; coloured where the verdict names a change"
    across, height = Axis("change, % of before"), 90 + 22 * len(shown)
    return [
        Chart(f"forest-{number}", label, [series], across, Axis(falling=True), height=height, legend="none")
    ]


def _colour_row(row: Change) -> str:
    return _COLOURS.get(TONES.get(row.verdict, ""), GREY)


def _describe_row(name: str, row: Change) -> str:
    low, high = row.relative_ci95 or (0.0, 0.0)
    ends = f"[{signed_percent(low)}, {signed_percent(high)}]"
    return f"{name}: {signed_percent(row.relative)} {ends}, {row.verdict_text}"


def difference_flames(number: int, rows: Sequence[ModuleChange], clock: Clock) -> list[Chart]:
    """The later run's modules by their time, red where slower and blue where faster, pale where not told."""
    timed = sorted((row for row in rows if row.after), key=lambda row: -(row.after or 0.0))[:MOST_MODULES]
    if not timed:
        return []
    paths = {row.path for row in timed}
    parents = {path: _find_parent(path, paths) for path in paths}
    own = {row.path: row.after or 0.0 for row in timed}
    if clock == "device":  # a module's time holds that of what it calls
        for path, parent in parents.items():
            if parent in own:
                own[parent] -= next(row.after or 0.0 for row in timed if row.path == path)
    timed.sort(key=lambda row: (row.path != ROOT, row.path))
    root = ROOT not in paths
    tree = Tree(
        ids=[*([ROOT] if root else []), *(row.path for row in timed)],
        labels=[*([ROOT] if root else []), *map(_label_module, timed)],
        parents=[*([""] if root else []), *("" if row.path == ROOT else parents[row.path] for row in timed)],
        values=[*([0.0] if root else []), *(max(0.0, own[row.path]) for row in timed)],
        colours=[*([paler(GREY, 0.7)] if root else []), *map(_colour_module, timed)],
        unit="ms",
        whole="the model",
    )
    label = "Modules of the later run by their time; red: slower, blue: faster, pale: not told from noise"
    return [Chart(f"flames-{number}", label, tree, height=360)]


def _find_parent(path: str, known: set[str]) -> str:
    while "." in path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return ROOT


def _label_module(row: ModuleChange) -> str:
    name = row.path.rpartition(".")[2]
    return f"{name} {row.difference:+.2f} ms" if row.is_seen and row.difference is not None else name


def _colour_module(row: ModuleChange) -> str:
    """The larger the change the fuller; what was not told from noise stays pale."""
    if row.verdict == "new":
        return RED
    strength = min(1.0, abs(row.relative or 0.0) / _STRONGEST)
    colour = RED if (row.relative or 0.0) > 0 else BLUE
    if row.is_seen:
        return paler(colour, 0.6 * (1 - strength))
    return paler(colour if row.relative else GREY, 1 - 0.25 * strength)
