"""Sums and medians of table columns as plain floats."""

from __future__ import annotations

from typing import cast

import polars as pl


def total(column: pl.Series) -> float:
    """The sum; 0 of nothing."""
    return float(cast(float, column.sum() or 0))


def mean(column: pl.Series) -> float | None:
    """The mean; None of nothing."""
    value = column.mean()
    return None if value is None else float(cast(float, value))


def median(values: list[float]) -> float | None:
    """The median; None of nothing."""
    value = pl.Series(values, dtype=pl.Float64).median()
    return None if value is None else float(cast(float, value))


def lowest(column: pl.Series) -> int:
    """The smallest of a column of whole numbers; 0 of nothing."""
    return int(cast(int, column.min() or 0))


def highest(column: pl.Series) -> int:
    """The largest of a column of whole numbers; 0 of nothing."""
    return int(cast(int, column.max() or 0))
