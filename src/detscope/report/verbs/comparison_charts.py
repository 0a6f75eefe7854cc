"""Pictures of a comparison: intervals beneath each other, and the modules coloured by their change."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.compare.change import ModuleChange, NamedChange
from detscope.analyze.figure import Clock
from detscope.analyze.step.modules import ROOT
from detscope.report.colours import BLUE, GREY, RED, paler
from detscope.report.figures import signed_percent
from detscope.report.model import Axis, Chart, Mark, Series, Tone, Tree

MOST_INTERVALS = 30
MOST_MODULES = 400  # of the flame chart; the rest is in the table
_WIDEST = 2.0  # an interval beyond +200 % is drawn to there
_STRONGEST = 0.5  # a change from which on a colour is at its fullest
TONES: dict[str, Tone] = {
    **dict.fromkeys(("slower", "more", "worse"), "bad"),
    **dict.fromkeys(("faster", "less", "better"), "good"),
}
_COLOURS = {"bad": RED, "good": BLUE}


def forest_plot(number: int, rows: Sequence[NamedChange | ModuleChange]) -> list[Chart]:
    """Changes with their intervals, one beneath the other; those that were told first are never left out."""
    known = [row for row in rows if row.relative is not None and row.relative_ci95 is not None]
    known = [row for row in known if row.chance is not None]  # what is too small to judge hides the rest
    told = [row for row in known if row.is_seen]
    chosen = (told + [row for row in known if not row.is_seen])[:MOST_INTERVALS]
    shown = [row for row in known if any(row is one for one in chosen)]
    if not shown:
        return []
    series = []
    for place, row in enumerate(shown):
        low, high = (100 * min(end, _WIDEST) for end in row.relative_ci95 or (0.0, 0.0))
        colour = _COLOURS.get(TONES.get(row.verdict, ""), GREY)
        details = [_describe_row(row)] * 2
        series.append(
            Series(row.row_label, [low, high], [-place, -place], colour, "lines", width=3, details=details)
        )
    series.append(
        Series(
            "change",
            [100 * min(row.relative or 0.0, _WIDEST) for row in shown],
            [-place for place in range(len(shown))],
            [_COLOURS.get(TONES.get(row.verdict, ""), GREY) for row in shown],
            "points",
            texts=[row.row_label for row in shown],
            details=[_describe_row(row) for row in shown],
        )
    )
    return [
        Chart(
            f"forest-{number}",
            "Changes and their 95 % intervals, in per cent; coloured where the verdict names a change",
            series,
            Axis("change, % of before"),
            Axis(hidden=True, lowest=-len(shown), highest=1),
            marks=[Mark(0.0, "no change")],
            height=90 + 30 * len(shown),
            legend="none",
        )
    ]


def _describe_row(row: NamedChange | ModuleChange) -> str:
    low, high = row.relative_ci95 or (0.0, 0.0)
    ends = f"[{signed_percent(low)}, {signed_percent(high)}]"
    return f"{row.row_label}: {signed_percent(row.relative)} {ends}, {row.verdict_text}"


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
