"""SQLite exports of Nsight Systems (`nsys export --type=sqlite`)."""

from __future__ import annotations

from pathlib import Path

from detscope.ingest.sink import Format, Sink


def recognize_head(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Any SQLite file: one that is no export is explained when it is read."""
    return head.startswith(b"SQLite format 3\x00")


def read_export(path: Path, sink: Sink) -> None:
    """Put an export's device and host events into the sink."""
    from detscope.ingest.nsys.export import read_export

    read_export(path, sink)


PART = Format("Nsight Systems export", recognize_head, read_export, order=10)
