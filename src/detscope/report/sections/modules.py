"""The module tree: an icicle to zoom into, and a table to search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from detscope.analyze.drawing import ReportData, tree_of
from detscope.analyze.step.clocks import Clocks
from detscope.analyze.step.modules import OUTSIDE, ROOT, ModuleFigures
from detscope.report.colours import PALETTE, paler
from detscope.report.figures import number, percent, with_unit
from detscope.report.model import BRIEF_ROWS, Absent, Chart, Column, Kind, Section, Table, Tree, Value
from detscope.report.sections import SectionPart

_DEFINITION = (
    "Self time is a module's own, without the modules below it; self times add up to the forward and the"
    " backward phase. Click a block to zoom in, the bar above to zoom out."
)
# An ancestor whose own code takes less than this share of its time only repeats its children.
USEFUL_SELF_SHARE = 0.05
Measure = Callable[[ModuleFigures], float | None]
# a module's own value, without the modules below it
MEASURES: tuple[tuple[str, Measure, str], ...] = (
    ("time, forward and backward", lambda row: row.self_ms, "ms"),
    ("forward", lambda row: row.self_forward_ms, "ms"),
    ("backward", lambda row: row.self_backward_ms, "ms"),
    ("memory at the peak", lambda row: row.memory_bytes, "B"),
    ("FLOPs, forward", lambda row: row.self_flops_forward, "FLOP"),
    ("FLOPs, backward", lambda row: row.self_flops_backward, "FLOP"),
)
COLUMNS: tuple[tuple[str, Kind, bool, Callable[[ModuleFigures], Value]], ...] = (
    ("type", "text", True, lambda row: row.type),
    ("stage", "text", False, lambda row: row.stage or ""),
    ("calls", "count", True, lambda row: row.calls),
    ("forward ms", "ms", True, lambda row: row.forward_ms),
    ("self forward ms", "ms", False, lambda row: row.self_forward_ms),
    ("backward ms", "ms", True, lambda row: row.backward_ms),
    ("self backward ms", "ms", False, lambda row: row.self_backward_ms),
    ("total ms", "ms", True, lambda row: row.total_ms),
    ("share of the step", "share", True, lambda row: row.share),
    ("idle ms", "ms", False, lambda row: row.idle_ms),
    ("host ms", "ms", True, lambda row: row.host_ms),
    ("remark", "sentence", False, lambda row: row.why),
    ("parameters", "count", False, lambda row: row.parameters),
    ("memory at peak", "bytes", False, lambda row: row.memory_bytes),
    ("FLOPs forward", "number", False, lambda row: row.flops_forward),
    ("FLOPs backward", "number", False, lambda row: row.flops_backward),
)


def section(data: ReportData) -> Section | Absent:
    """Modules by what they cost."""
    modules: list[ModuleFigures] = data.summary.modules
    if not modules:
        return Absent("Modules", "modules need --level modules or ops")
    return Section(
        "modules",
        "Modules",
        _headline(modules),
        _DEFINITION if data.summary.clocks.clock == "host" else _tell_marks(data.summary.clocks),
        [_icicle_of(modules), _full_table(modules), _brief_table(modules)],
    )


def _tell_marks(clocks: Clocks) -> str:
    """What the times are, and which modules have none."""
    text = f"Times are the device's, by its {clocks.source}. {_DEFINITION}"
    without = [
        f"{len(paths)} {words}"
        for paths, words in (
            (clocks.below_mark, "below their mark"),
            (clocks.unmarked, "not marked yet"),
        )
        if paths and clocks.source == "marks"
    ]
    if without:
        text += f" Without a time of their own: {', '.join(without)}; it is in their caller's."
    if clocks.modules_over_ms:
        text += f" By marks in turn own times are {number(clocks.modules_over_ms)} ms more than their phases."
    return text


def _headline(modules: Sequence[ModuleFigures]) -> str:
    leaves = [row for row in modules if row.path not in (ROOT, OUTSIDE)]
    if not leaves:
        return "One module"
    top = max(leaves, key=lambda row: row.self_ms or 0.0)
    if top.self_ms is None:
        return "The device's clock has no time of a module yet"
    whole = sum(row.self_ms or 0.0 for row in modules) or 1.0
    return (
        f"{top.path} takes {with_unit(top.self_ms, 'ms')}, {percent(top.self_ms / whole)} of the model's time"
    )


def _icicle_of(modules: Sequence[ModuleFigures]) -> Chart:
    tree = tree_of([row.path for row in modules], ROOT)
    paths, parents = [path for path, _ in tree], [parent for _, parent in tree]
    labels = [path.rpartition(".")[2] or path for path in paths]
    by_path = {row.path: row for row in reversed(modules)}
    own = _own_parameters(by_path, tree)
    measures = (*MEASURES[:4], ("parameters", lambda row: own[row.path], ""), *MEASURES[4:])
    choices = [
        (name, Tree(paths, labels, parents, values, _shade_paths(paths), unit, "the model"))
        for name, get, unit in measures
        if any(values := [round(float(get(by_path[path]) or 0), 5) for path in paths])
    ]
    label = "The module tree; the width of a block is its share"
    first = (
        choices[0][1] if choices else Tree(paths, labels, parents, [0.0] * len(paths), _shade_paths(paths))
    )
    return Chart("icicle", label, first, height=460, choices=choices, file="modules")


def _own_parameters(by_path: dict[str, ModuleFigures], tree: Sequence[tuple[str, str]]) -> dict[str, float]:
    own = {path: float(row.parameters) for path, row in by_path.items()}
    for path, parent in tree:
        if parent:
            own[parent] = own[parent] - by_path[path].parameters
    return {path: max(0.0, value) for path, value in own.items()}


def _shade_paths(paths: Sequence[str]) -> list[str]:
    """One colour per part of the model, in the order of its children, paler with depth."""
    tops = list(dict.fromkeys(path.split(".")[0] for path in paths if path not in (ROOT, OUTSIDE)))
    shades = []
    for path in paths:
        if path in (ROOT, OUTSIDE):
            shades.append("#5B6B7C")
            continue
        base = PALETTE[tops.index(path.split(".")[0]) % len(PALETTE)]
        shades.append(paler(base, min(0.65, 0.13 * path.count("."))))
    return shades


def _full_table(modules: Sequence[ModuleFigures]) -> Table:
    wanted = [one for one in COLUMNS if any(one[3](row) is not None for row in modules)]
    columns = [Column("Module", "code"), *(Column(title, kind, brief) for title, kind, brief, _ in wanted)]
    rows = [[row.path, *(get(row) for *_, get in wanted)] for row in modules]
    caption = f"{len(modules)} modules, methods and functions, dearest first"
    return Table("modules-table", caption, columns, rows, searchable=True)


def _brief_table(modules: Sequence[ModuleFigures]) -> Table:
    """Those that cost most by themselves: ancestors that only repeat their children are left out."""
    chosen = top_modules(modules)
    brief = [one for one in COLUMNS if one[2] and any(one[3](row) is not None for row in modules)]
    if not any(row.backward_ms for row in chosen):
        brief = [one for one in brief if not one[0].startswith(("forward", "backward"))]
    columns = [Column("module", "code"), *(Column(title, kind) for title, kind, _, _ in brief)]
    rows = [[row.path, *(get(row) for *_, get in brief)] for row in chosen]
    return Table(
        "modules-top", "The most expensive modules", columns, rows, brief_rows=BRIEF_ROWS, full=False
    )


def top_modules(modules: Sequence[ModuleFigures], most: int = BRIEF_ROWS) -> list[ModuleFigures]:
    """The most expensive modules whose own code does something."""
    useful = [
        row
        for row in modules
        if row.path != ROOT and row.total_ms and (row.self_ms or 0.0) >= USEFUL_SELF_SHARE * row.total_ms
    ]
    return useful[:most]


PART = SectionPart("modules", 60, section)
