"""Sections as CSV: figures in full, without units; an unknown one is an empty cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from detscope.report.model import Section, Table


def sections_csv(sections: Sequence[Section]) -> str:
    """All tables beneath each other: section, table, row, column, value."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("section", "table", "row", "column", "value"))
    for section in sections:
        for block in section.blocks:
            if not isinstance(block, Table):
                continue
            for row in block.rows:
                label = "" if row[0] is None else str(row[0])
                for column, value in zip(block.columns[1:], row[1:], strict=True):
                    writer.writerow(
                        (section.id, block.id, label, column.title, "" if value is None else value)
                    )
    return text.getvalue()
