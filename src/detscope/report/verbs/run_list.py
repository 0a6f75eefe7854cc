"""A list of runs."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.run_list import RunEntry
from detscope.report.model import Column, Fact, Facts, Section, Table

_COLUMNS = ("name", "verb", "model", "device", "batch_size", "precision", "status")


def run_list_sections(entries: Sequence[RunEntry]) -> list[Section]:
    """The runs of a folder, one line each."""
    columns = [Column(name.replace("_", " ")) for name in _COLUMNS]
    body = [[_text_of(getattr(entry, name)) for name in _COLUMNS] for entry in entries]
    facts = [Fact("runs", str(len(entries)) if entries else "no runs")]
    facts += [Fact("damaged", entry.reason or "", "warn") for entry in entries if entry.status == "damaged"]
    table = Table("runs", "Runs", columns, body, brief_rows=len(body))
    return [Section("runs", "Runs", f"{len(entries)} runs", "", [table, Facts(facts)])]


def _text_of(value: str | int | None) -> str:
    return "-" if value is None else str(value)
