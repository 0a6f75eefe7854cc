"""Rows of a summary's JSON by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def by_name(rows: Sequence[dict[str, Any]], key: str, depth: int | None = None) -> dict[str, Any]:
    """One figure of every row; of a tree those of one depth alone."""
    return {row["name"]: row[key] for row in rows if depth is None or row["depth"] == depth}
