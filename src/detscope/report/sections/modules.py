"""The module tree: an icicle to zoom into, and a table to search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detscope.analyze.drawing import ReportData, tree_of
from detscope.analyze.step.modules import OUTSIDE, ROOT
from detscope.report.figures import is_number, percent, rows, with_unit
from detscope.report.model import Absent, Chart, Column, Section, Table
from detscope.report.sections.common import PALETTE, paler

Row = Mapping[str, Any]
# name in the choice, key of a row's own value (without the modules below it), unit
MEASURES = (
    ("time, forward and backward", "self_total_ms", "ms"),
    ("forward", "self_forward_ms", "ms"),
    ("backward", "self_backward_ms", "ms"),
    ("memory at the peak", "memory_bytes", "B"),
    ("parameters", "self_parameters", ""),
    ("FLOPs, forward", "self_flops_forward", "FLOP"),
    ("FLOPs, backward", "self_flops_backward", "FLOP"),
)


def section(data: ReportData) -> Section | Absent:
    """Modules by what they cost."""
    modules = rows(data.summary, "modules")
    if not modules:
        return Absent("Modules", "modules need --level modules or ops")
    tree = tree_of(modules, ROOT)
    own = _own_parameters(modules, tree)
    full = [
        {
            **row,
            "self_total_ms": _sum(row, "self_forward_ms", "self_backward_ms"),
            "self_parameters": own.get(row["path"]),
        }
        for row in modules
    ]
    return Section(
        "modules",
        "Modules",
        _title(modules),
        "Self time is a module's own, without the modules below it; self times add up to the forward and the"
        " backward phase. Click a block to zoom in, the bar above to zoom out.",
        [_icicle(full, tree), _table(full)],
    )


def _sum(row: Row, *keys: str) -> float:
    return sum(float(row.get(key) or 0.0) for key in keys)


def _title(modules: Sequence[Row]) -> str:
    leaves = [row for row in modules if row["path"] not in (ROOT, OUTSIDE)]
    if not leaves:
        return "One module"
    top = max(leaves, key=lambda row: _sum(row, "self_forward_ms", "self_backward_ms"))
    whole = sum(_sum(row, "self_forward_ms", "self_backward_ms") for row in modules) or 1.0
    cost = _sum(top, "self_forward_ms", "self_backward_ms")
    return (
        f"{top['path']} costs most of its own: {with_unit(cost, 'ms')}, {percent(cost / whole)} of the model"
    )


def _own_parameters(modules: Sequence[Row], tree: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Parameters of a module without those of the modules below it."""
    known = {row["path"]: int(row.get("parameters") or 0) for row in modules if row.get("kind") == "module"}
    own = dict(known)
    for path, parent in tree:
        if path in known and parent in own:
            own[parent] -= known[path]
    return {path: max(0, value) for path, value in own.items()}


def _icicle(modules: Sequence[Row], tree: Sequence[tuple[str, str]]) -> Chart:
    by_path = {row["path"]: row for row in modules}
    colours = _colours([path for path, _ in tree])
    choices = []
    for name, key, unit in MEASURES:
        values = [by_path[path].get(key) for path, _ in tree]
        if not any(is_number(value) and value > 0 for value in values):
            continue
        choices.append(
            (
                name,
                [
                    {
                        "type": "icicle",
                        "ids": [path for path, _ in tree],
                        "labels": [path.rpartition(".")[2] or path for path, _ in tree],
                        "parents": [parent for _, parent in tree],
                        "values": [round(float(value), 5) if is_number(value) else 0 for value in values],
                        "branchvalues": "remainder",
                        "tiling": {"orientation": "v"},
                        "marker": {"colors": colours, "line": {"width": 1, "color": "#ffffff"}},
                        "leaf": {"opacity": 1},
                        "maxdepth": 6,
                        "hovertemplate": f"%{{id}}<br>%{{value:.4s}} {unit}<br>"
                        "%{percentRoot} of the model<extra></extra>",
                    }
                ],
            )
        )
    first = choices[0][1] if choices else []
    return Chart("icicle", "The module tree; the width of a block is its share", first, {}, 460, choices)


def _colours(paths: Sequence[str]) -> list[str]:
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


def _table(modules: Sequence[Row]) -> Table:
    optional = [
        (Column("memory at peak", "bytes"), "memory_bytes"),
        (Column("FLOPs forward", "number"), "flops_forward"),
        (Column("FLOPs backward", "number"), "flops_backward"),
    ]
    wanted = [(column, key) for column, key in optional if any(is_number(row.get(key)) for row in modules)]
    columns = [
        Column("Module", "code"),
        Column("type"),
        Column("stage"),
        Column("calls", "count"),
        Column("forward ms", "ms"),
        Column("self forward ms", "ms"),
        Column("backward ms", "ms"),
        Column("self backward ms", "ms"),
        Column("total ms", "ms"),
        Column("share of the step", "share"),
        Column("parameters", "count"),
    ]
    keys = [
        "path",
        "type",
        "stage",
        "calls",
        "forward_ms",
        "self_forward_ms",
        "backward_ms",
        "self_backward_ms",
        "total_ms",
    ]
    keys += ["share", "parameters"]
    body = [[_value(row, key) for key in (*keys, *(key for _, key in wanted))] for row in modules]
    return Table(
        "modules-table",
        f"{len(modules)} modules, methods and functions, dearest first",
        [*columns, *(column for column, _ in wanted)],
        body,
        searchable=True,
    )


def _value(row: Row, key: str) -> Any:
    value = row.get(key)
    return "" if value is None and key == "stage" else value
