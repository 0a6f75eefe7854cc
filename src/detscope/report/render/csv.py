"""Tables as CSV: figures in full, without units; an unknown one is an empty cell."""

from __future__ import annotations

import csv
import io

from detscope.report.model import Table


def table_csv(table: Table) -> str:
    """One table with its header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    writer.writerows([["" if value is None else value for value in row] for row in table.rows])
    return text.getvalue()
