"""A script that was recorded as it is: its parts, the models it called, and whose `other` is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.report.figures import mapping, plain, rows
from detscope.report.model import Block, Column, Section, Table


def section(data: ReportData) -> Section | None:
    """What `detscope run` found; other runs have no such section."""
    script = mapping(data.summary, "script")
    if not script:
        return None
    blocks = [_parts(script), _models(script)]
    if rows(script, "other"):
        blocks.append(_other(script))
    return Section(
        "script",
        "Script",
        _title(script),
        "Nothing of the script was changed. A step ends where, after an optimizer has stepped, the next batch"
        " is asked for; figures are those of training, where there was any.",
        [block for block in blocks if block is not None],
    )


def _title(script: Mapping[str, Any]) -> str:
    optimizers = ", ".join(plain(name) for name in script.get("optimizers") or ())
    by = f", by {optimizers}" if optimizers else ""
    parts = mapping(script, "parts")
    steps = [
        f"{mapping(parts, name).get('steps'):,} {name}"
        for name in ("training", "evaluation")
        if mapping(parts, name).get("steps")
    ]
    found = f"{' and '.join(steps)} steps{by}" if steps else "no step was seen"
    return f"{plain(script.get('name'))}: {found}"


def _parts(script: Mapping[str, Any]) -> Block | None:
    found = [
        [name, part.get("steps"), part.get("batches"), part.get("step_p50_ms"), part.get("total_s")]
        for name, part in mapping(script, "parts").items()
        if part.get("steps")
    ]
    columns = [Column("part"), Column("steps", "count"), Column("batches", "count")]
    columns += [Column("step ms, median", "ms"), Column("in all, s", "number")]
    return Table("script-parts", "Parts of the script", columns, found) if found else None


def _models(script: Mapping[str, Any]) -> Block | None:
    found = [
        [
            plain(" of ".join([*(row.get("inside") or ()), str(row.get("class"))])),
            plain(row.get("role")),
            row.get("parameters"),
            row.get("calls"),
            row.get("forward_ms"),
        ]
        for row in rows(script, "roots")
    ]
    columns = [Column("model"), Column("role"), Column("parameters", "count"), Column("calls", "count")]
    columns.append(Column("forward ms, in all", "ms"))
    return Table("script-models", "What the script called", columns, found) if found else None


def _other(script: Mapping[str, Any]) -> Block:
    found = [
        [
            plain(row.get("function")),
            plain(f"{row.get('file')}:{row.get('line')}"),
            plain(
                ", ".join(f"{one['function']} ({one['file']}:{one['line']})" for one in rows(row, "inside"))
            ),
            row.get("steps"),
            row.get("looks"),
            row.get("share_of_other"),
            row.get("ms"),
        ]
        for row in rows(script, "other")
    ]
    columns = [Column("function"), Column("where"), Column("in packages"), Column("steps", "count")]
    columns.append(Column("looks", "count"))
    columns += [Column("of other", "share"), Column("ms per step", "ms")]
    return Table(
        "script-other", "Time outside of all phases, by the function that was running", columns, found
    )
