"""Table cells: text for people, and how it is set."""

from __future__ import annotations

from dataclasses import dataclass

from detscope.report.figures import ABSENT, is_number, number, percent, plain, signed_percent, with_unit
from detscope.report.model import Column, Table, Value


@dataclass(frozen=True)
class Cell:
    """What is shown, and how long the bar behind it is, in per cent."""

    text: str
    share: int = 0


def cells_of(table: Table) -> list[list[Cell]]:
    """All cells of a table."""
    return [
        [cell_of(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]


def cell_of(value: Value, column: Column) -> Cell:
    """One cell; absent is said, never shown as zero."""
    if column.kind in ("text", "code", "sentence"):
        return Cell(ABSENT if value is None else plain(value))
    if not is_number(value):
        return Cell(plain(value) if isinstance(value, str) else ABSENT)
    share = round(max(0.0, min(1.0, value)) * 100) if column.kind == "share" else 0
    return Cell(_figure(value, column.kind), share)


def row_names(table: Table) -> list[str]:
    """The end of each row's address: its first cell, with a number where several have the same."""
    seen: dict[str, int] = {}
    names = []
    for row in table.rows:
        name = "_".join(plain("" if row[0] is None else row[0]).split()) or "row"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}~{seen[name]}")
    return names


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
