"""Listings of Nsight Compute as CSV: long, wide (`--page raw`), the details page, and tables made of them.

Columns are found by name, so 12, 15, 18 or 20 of them are all the same. Lines that are not part of a
listing (==PROF==, the program's own output) are counted and passed over wherever they stand. A kernel is a
launch id of one process in one listing: equal ids of two processes are two kernels. Values keep the
listing's meaning but not its prefixes: times are in ns, sizes in byte, rates per second.
"""

from __future__ import annotations

import re
from pathlib import Path

from detscope.errors import InputError
from detscope.ingest.ncu.kernels import KernelTable
from detscope.ingest.ncu.listings import PERMISSION, ListingReader, decode_head
from detscope.ingest.sink import Format, Sink

_LONG = re.compile(r'"?ID"?\s*[,;\t]\s*"?Process ID"?')
_PIVOT = re.compile(r'^\s*"?Metric Name"?\s*[,;\t].*\b\w+__\w+\.', re.MULTILINE)
_TOOL = re.compile(r"^==(?:PROF|WARNING|ERROR)==", re.MULTILINE)


def recognize_head(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether the text has a listing's header, or the tool's own lines before one."""
    if head[:1] in b"{[" or head.startswith(b"SQLite"):
        return False
    text = decode_head(head)
    return bool(_LONG.search(text) or _PIVOT.search(text) or _TOOL.search(text))


def read_listings(path: Path, sink: Sink) -> None:
    """Put the metrics of every kernel into the sink."""
    table, reader = KernelTable(sink), ListingReader(path)
    for listing in reader.read_listings():
        if listing.is_summary:
            raise InputError(
                f"{path.name} sums kernels up (--print-summary): it does not list them one by one",
                "export again without --print-summary",
            )
        table.add_listing(listing)
        sink.add_count("lines that are no part of a listing", listing.log_lines)
        sink.add_count("rows of rules, without a metric", listing.rule_rows)
        sink.add_count("rows that are cut or damaged", listing.bad_rows)
    if reader.is_forbidden:
        sink.add_note(f"Nsight Compute reported {PERMISSION}: it was not allowed to read counters")
    table.write_rows()
    if not sink.rows and reader.is_forbidden:
        raise InputError(
            f"{path.name} has no kernel: Nsight Compute was not allowed to read counters ({PERMISSION})",
            "let an administrator set NVreg_RestrictProfilingToAdminUsers=0, or record as root",
        )
    if not sink.rows:
        raise InputError(
            f"{path.name} has no kernel with metrics",
            "export with: ncu --csv --page raw --print-units base -i REPORT.ncu-rep",
        )
    sink.info.update(format="Nsight Compute CSV", kernels=table.kernel_count, layouts=sorted(table.layouts))
    sink.cannot_tell("device use over time: Nsight Compute serialises kernels and lists no times")


PART = Format("Nsight Compute listing", recognize_head, read_listings, order=40)
