"""Memory: a step's timeline by category, and the peak as a map of category, module and tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.analyze.memory.timeline import Timeline, step_timeline
from detscope.report.colours import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW
from detscope.report.figures import is_number, mapping, percent, plain, rows, with_unit
from detscope.report.model import Absent, Block, Chart, Column, Finding, Findings, Section, Table
from detscope.report.sections import SectionPart

COLOURS = {
    "parameters": BLUE,
    "gradients": RED,
    "optimizer": GREEN,
    "inputs": YELLOW,
    "activations": SKY,
    "temporary": ORANGE,
    "workspace": PINK,
    "unknown": GREY,
}
MODULES_ON_THE_MAP = 60


def section(data: ReportData) -> Section | Absent:
    """What the peak is made of."""
    memory = mapping(data.summary, "memory")
    peak = memory.get("peak_bytes")
    if not is_number(peak) or not isinstance(memory.get("categories"), Mapping):
        if is_number(peak):
            return _one_pass(memory)
        return Absent("Memory", plain(memory.get("why") or "record it with --memory"))
    blocks: list[Block] = []
    timeline = step_timeline(data.run)
    if timeline is not None:
        blocks.append(_over_a_step(timeline))
    blocks.append(_categories(memory))
    if rows(memory, "modules"):
        blocks += [_map(memory), _modules(memory)]
    if rows(memory, "largest"):
        blocks.append(_largest(memory))
    blocks.append(_levels(memory))
    advice = [
        Finding(
            plain(row.get("advice") or ""),
            f"It costs: {plain(row.get('costs') or 'nothing')}.",
            _saving(row),
            plain(row.get("how") or ""),
        )
        for row in rows(memory, "advice")[:4]
    ]
    if advice:
        blocks.append(Findings(advice))
    return Section(
        "memory",
        "Memory",
        _title(memory, float(peak)),
        "Allocated bytes of live tensors, shared storage counted once; reserved (the allocator's) and"
        " process memory are other figures and never mixed with it.",
        blocks,
    )


def _title(memory: Mapping[str, Any], peak: float) -> str:
    categories = mapping(memory, "categories")
    top = max(categories, key=lambda name: categories[name])
    at = mapping(memory, "at")
    share = percent(categories[top] / peak) if peak else ""
    where = plain(at.get("module") or at.get("phase") or "")
    return f"The peak is {with_unit(peak, 'bytes')}{' in ' if where else ''}{where}: {share} of it {top}"


def _over_a_step(timeline: Timeline) -> Chart:
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "line": {"shape": "hv", "width": 0.5, "color": COLOURS.get(name, GREY)},
            "stackgroup": "memory",
            "fillcolor": COLOURS.get(name, GREY),
            "name": name,
            "x": [round(ms, 3) for ms in timeline.ms],
            "y": [round(value / 1e6, 3) for value in values],
        }
        for name, values in timeline.bytes.items()
    ]
    shapes = [
        {
            "type": "line",
            "x0": begin,
            "x1": begin,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"width": 1, "dash": "dot", "color": GREY},
        }
        for _, begin, _ in timeline.phases
    ]
    notes = [
        {
            "x": begin,
            "y": 1,
            "yref": "paper",
            "text": name,
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
        }
        for name, begin, end in timeline.phases
        if end - begin > 0.06 * timeline.wall_ms
    ]
    layout = {
        "xaxis": {"title": {"text": "ms into the step"}},
        "yaxis": {"title": {"text": "MB"}},
        "shapes": shapes,
        "annotations": notes,
        "legend": {"orientation": "h", "y": -0.25},
    }
    return Chart(
        "memory-timeline", f"Allocated memory over step {timeline.step}, by category", traces, layout, 380
    )


def _categories(memory: Mapping[str, Any]) -> Table:
    categories, peak = mapping(memory, "categories"), float(memory["peak_bytes"]) or 1.0
    ordered = sorted(categories.items(), key=lambda item: -item[1])
    return Table(
        "memory-categories",
        "The peak by category",
        [Column("category"), Column("bytes", "bytes"), Column("share", "share")],
        [[name, value, value / peak] for name, value in ordered],
    )


def _map(memory: Mapping[str, Any]) -> Chart:
    """Category > module, at the peak."""
    ids, labels, parents, values, colours = ["peak"], ["peak"], [""], [0.0], ["#5B6B7C"]
    for category in mapping(memory, "categories"):
        ids.append(category)
        labels.append(category)
        parents.append("peak")
        values.append(0.0)
        colours.append(COLOURS.get(category, GREY))
    for row in rows(memory, "modules")[:MODULES_ON_THE_MAP]:
        for category, size in mapping(row, "categories").items():
            ids.append(f"{category} {row['path']}")
            labels.append(plain(row["path"]))
            parents.append(category)
            values.append(round(size / 1e6, 4))
            colours.append(COLOURS.get(category, GREY))
    rest = rows(memory, "modules")[MODULES_ON_THE_MAP:]
    for category in mapping(memory, "categories"):
        left = sum(mapping(row, "categories").get(category, 0) for row in rest)
        if left:
            ids.append(f"{category} (other modules)")
            labels.append(f"{len(rest)} other modules")
            parents.append(category)
            values.append(round(left / 1e6, 4))
            colours.append(COLOURS.get(category, GREY))
    trace = {
        "type": "treemap",
        "ids": ids,
        "labels": labels,
        "parents": parents,
        "values": values,
        "branchvalues": "remainder",
        "marker": {"colors": colours, "line": {"width": 1, "color": "#ffffff"}},
        "hovertemplate": "%{id}<br>%{value:.3f} MB<br>%{percentRoot} of the peak<extra></extra>",
    }
    return Chart("memory-map", "What is alive at the peak: category, then module", [trace], {}, 420)


def _modules(memory: Mapping[str, Any]) -> Table:
    shown = rows(memory, "modules")
    return Table(
        "memory-modules",
        "The peak by module",
        [
            Column("Module", "code"),
            Column("bytes", "bytes"),
            Column("share", "share"),
            Column("tensors", "count"),
            Column("of which", "sentence"),
        ],
        [
            [
                row["path"],
                row["bytes"],
                row.get("share"),
                row.get("tensors"),
                ", ".join(
                    f"{name} {with_unit(size, 'bytes')}" for name, size in mapping(row, "categories").items()
                ),
            ]
            for row in shown
        ],
        searchable=True,
    )


def _largest(memory: Mapping[str, Any]) -> Table:
    keys = ("bytes", "shape", "dtype", "category", "module", "operator", "name")
    columns = [Column("bytes", "bytes"), *(Column(key) for key in keys[1:])]
    body = [
        [row.get(key) if row.get(key) is not None else "" for key in keys] for row in rows(memory, "largest")
    ]
    return Table("memory-largest", "The largest tensors alive at the peak", columns, body)


def _levels(memory: Mapping[str, Any]) -> Table:
    levels = mapping(memory, "levels")
    names = {
        "allocated_bytes": "allocated: live tensors, by the allocator's own events",
        "reserved_bytes": "reserved: what the caching allocator holds of the device",
        "fragmentation": "reserved and not allocated",
        "process_bytes": "process: resident memory of the main process, or the device's account of it",
        "process_growth_bytes": "growth of the process's resident memory since recording began",
    }
    found = [[text, levels.get(key)] for key, text in names.items() if levels.get(key) is not None]
    found += [
        [f"process of loader worker {row.get('pid')}", row.get("bytes")] for row in rows(levels, "workers")
    ]
    found = [[text, value if is_number(value) or isinstance(value, str) else None] for text, value in found]
    columns = [Column("name"), Column("highest", "bytes")]
    return Table("memory-levels", "Three names that are never mixed", columns, found)


def _saving(row: Mapping[str, Any]) -> str:
    saved = row.get("saves_bytes")
    return f"saves {with_unit(saved, 'bytes')}" if is_number(saved) else ""


def _one_pass(memory: Mapping[str, Any]) -> Section:
    """An inference without --memory measured three passes by stage."""
    stages = rows(memory, "stages")
    return Section(
        "memory",
        "Memory",
        f"A forward pass allocates up to {with_unit(memory['peak_bytes'], 'bytes')} above what was there",
        plain(memory.get("what") or ""),
        [
            Table(
                "memory-stages",
                "By stage, parts included",
                [
                    Column("Stage", "code"),
                    Column("peak", "bytes"),
                    Column("allocated", "bytes"),
                    Column("freed", "bytes"),
                ],
                [
                    [row.get(key) for key in ("name", "peak_bytes", "allocated_bytes", "freed_bytes")]
                    for row in stages
                ],
                depth=[int(row.get("depth") or 0) for row in stages],
            )
        ],
    )


PART = SectionPart("memory", 120, section)
