"""Kineto / Chrome traces: what torch.profiler and detscope write, old and new, whole or damaged."""

from __future__ import annotations

import re
from pathlib import Path

from detscope.ingest.sink import Format, Sink

_OBJECT = re.compile(rb"^\s*+\{\s*+[\"}]")
_LIST = re.compile(rb"^\s*\[\s*(\{|\])")
_EVENT_KEYS = re.compile(rb'"(traceEvents|ph|schemaVersion|deviceProperties|distributedInfo)"\s*:')


def recognize_head(head: bytes, path: Path) -> bool:
    """JSON that holds events, as a list or as an object; also where it is cut or damaged further on."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    if _LIST.match(head):
        return b'"ph"' in head or b'"ts"' in head or head.strip() == b"[]"
    if _EVENT_KEYS.search(head):
        return head.lstrip().startswith(b"[") or _OBJECT.match(head) is not None
    from detscope.ingest.kineto.stream import has_events

    return _OBJECT.match(head) is not None and has_events(path)


def read_trace(path: Path, sink: Sink) -> None:
    """Read a trace into the sink's tables."""
    from detscope.ingest.kineto.reader import read_trace

    read_trace(path, sink)


PART = Format("Kineto / Chrome trace", recognize_head, read_trace, order=50)
