"""How it was measured: environment, own cost, steadiness, definitions, what could not be known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.report.figures import interval, is_number, mapping, number, plain, rows, sentences
from detscope.report.model import Block, Column, Notes, Section, Table


def section(data: ReportData) -> Section:
    """Everything a doubter asks for."""
    summary, info = data.summary, data.run.info
    cost = mapping(summary, "overhead_ratio")
    blocks: list[Block] = []
    remarks = [f"cannot tell: {text}" for text in sentences(summary, "cannot_tell")]
    remarks += sentences(summary, "notes")
    if remarks:
        blocks.append(Notes(remarks))
    blocks.append(
        Table(
            "facts",
            "This run and its machine",
            [Column("what"), Column("value", "text")],
            _facts(summary, info),
        )
    )
    telemetry = rows(summary, "telemetry")
    if telemetry:
        columns = [Column("source"), Column("metric"), Column("mean", "number"), Column("max", "number")]
        columns += [Column("unit"), Column("samples", "count")]
        body = [
            [row.get(key) for key in ("source", "metric", "mean", "max", "unit", "n")] for row in telemetry
        ]
        blocks.append(Table("telemetry", "Sampled while it ran", columns, body))
    definitions = mapping(summary, "definitions")
    blocks.append(
        Table(
            "definitions",
            "What the numbers mean",
            [Column("number"), Column("definition", "sentence")],
            [[name, text] for name, text in definitions.items()],
        )
    )
    return Section("method", "How it was measured", _title(cost), "", blocks)


def _title(cost: Mapping[str, Any]) -> str:
    if not is_number(cost.get("value")):
        return f"What recording costs is not known: {plain(cost.get('why') or 'no step ran bare')}"
    ends = interval(cost.get("ci95"))
    return f"Steps take {number(cost['value'], 3)} times as long as without a recorder, 95 % interval {ends}"


def _facts(summary: Mapping[str, Any], info: Mapping[str, Any]) -> list[list[Any]]:
    found: list[list[Any]] = [
        [key, plain(_name(summary.get(key)))]
        for key in ("run", "verb", "status", "reason", "device", "batch_size", "precision", "level")
        if summary.get(key) is not None
    ]
    steady = mapping(summary, "stability")
    if steady:
        found.append(["steadiness", f"{steady.get('verdict')}: {plain(steady.get('reason') or '')}"])
    for key in ("model", "weights", "data", "environment"):
        found += _flat(key, info.get(key))
    return found


def _name(value: Any) -> Any:
    """Of a device with figures only its name."""
    return value.get("name") if isinstance(value, Mapping) else value


def _flat(name: str, value: Any) -> list[list[Any]]:
    if isinstance(value, Mapping):
        return [row for key, inner in value.items() for row in _flat(f"{name}.{key}", inner)]
    if value is None or value == "" or value == []:
        return []
    text = ", ".join(map(plain, value)) if isinstance(value, list) else plain(value)
    return [[name, text]]
