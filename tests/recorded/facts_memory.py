"""Memory timelines and snapshots of the allocator as tables, and back into JSON and a pickle."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
from facts_texts import without_home

from detscope.ingest.unpickle import load_plain

_TIMELINE = ("time", "action", "bytes", "category")
_SEGMENT = ("device", "address", "total_size", "stream", "segment_type")
_BLOCK = ("address", "size", "requested_size", "state")
_ENTRY = ("action", "addr", "size", "stream", "time_us")
_WORDS = ("part", "segment_type", "state", "action", "frames")


def reduce_timeline(path: Path) -> pl.DataFrame:
    """One row per event."""
    return pl.DataFrame(
        json.loads(gzip.decompress(path.read_bytes())),
        schema=dict.fromkeys(_TIMELINE, pl.Int64),
        orient="row",
    ).with_columns(pl.col("time").diff().fill_null(pl.col("time")))


def restore_timeline(frame: pl.DataFrame, path: Path) -> None:
    """Write the events again."""
    rows = frame.with_columns(pl.col("time").cum_sum()).rows()
    path.write_bytes(gzip.compress(json.dumps(rows).encode(), 1))


def reduce_snapshot(path: Path) -> pl.DataFrame:
    """Segments, each followed by its blocks, then the history of the one device; a stack is one text."""
    whole = load_plain(path.read_bytes())
    (entries,) = whole["device_traces"]
    rows = []
    for segment in whole["segments"]:
        rows.append({"part": "segment", **{key: segment[key] for key in _SEGMENT}})
        rows += [_row("block", block, _BLOCK) for block in segment["blocks"]]
    rows += [_row("entry", entry, _ENTRY) for entry in entries]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame.with_columns(pl.col(name).cast(pl.Categorical) for name in _WORDS)


def _row(part: str, facts: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    frames = [
        [without_home(frame["filename"]), frame["line"], frame["name"]] for frame in facts.get("frames") or ()
    ]
    return {"part": part, **{key: facts[key] for key in keys}, "frames": json.dumps(frames)}


def restore_snapshot(frame: pl.DataFrame, path: Path) -> None:
    """Write the pickle again, of plain data alone."""
    stacks: dict[str, list[dict[str, Any]]] = {}  # the same stack is one object, as torch writes it
    segments: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for row in frame.iter_rows(named=True):
        if row["part"] == "segment":
            segments.append({**{key: row[key] for key in _SEGMENT}, "blocks": []})
            continue
        text = row["frames"]
        if text not in stacks:
            stacks[text] = [{"filename": f, "line": n, "name": name} for f, n, name in json.loads(text)]
        keys = _BLOCK if row["part"] == "block" else _ENTRY
        facts = {**{key: row[key] for key in keys}, "frames": stacks[text]}
        (segments[-1]["blocks"] if row["part"] == "block" else entries).append(facts)
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [entries]}))
