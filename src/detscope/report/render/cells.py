"""Table cells: text for people, and the value they are sorted by."""

from __future__ import annotations

from dataclasses import dataclass

from detscope.report.figures import ABSENT, is_number, number, percent, plain, signed_percent, with_unit
from detscope.report.model import Column, Table, Value


@dataclass(frozen=True)
class Cell:
    """What is shown, what is sorted by, and how it is set."""

    text: str
    sort: str
    css: str
    share: float | None = None


def cells_of(table: Table) -> list[list[Cell]]:
    """All cells of a table."""
    return [
        [cell_of(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]


def cell_of(value: Value, column: Column) -> Cell:
    """One cell; absent is said, never shown as zero."""
    if column.kind in ("text", "code", "sentence"):
        text = ABSENT if value is None else plain(value)
        return Cell(text, text.lower(), column.kind)
    if not is_number(value):
        return Cell(plain(value) if isinstance(value, str) else ABSENT, "", "figure")
    return Cell(_figure(value, column.kind), repr(float(value)), "figure", _bar(value, column.kind))


def _figure(value: float, kind: str) -> str:
    if kind == "share":
        return percent(value)
    if kind == "change":
        return signed_percent(value)
    if kind == "bytes":
        return with_unit(value, "bytes")
    if kind == "count":
        return f"{value:,.0f}" if float(value).is_integer() else number(value)
    return number(value, 3 if kind == "score" else None)


def _bar(value: float, kind: str) -> float | None:
    return round(max(0.0, min(1.0, value)) * 100, 1) if kind == "share" else None
