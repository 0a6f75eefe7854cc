"""A list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from detscope.analyze.run_list import RunEntry
from detscope.report.figures import ABSENT, number, with_unit
from detscope.report.model import Column, Fact, Facts, Section, Table, Tone, Value
from detscope.report.render.wrapping import shorten_middle

ROOM_FOR_NAMES = 26  # cells that id and model get together, so that a line has 80 at most
_ID_CELLS = 4
_HEADS = (
    Column("id", "code"),
    Column("age"),
    Column("what", "code"),
    Column("ms", "number"),
    Column("img/s", "number"),
    Column("peak", "number"),
    Column("verdict"),
)
_LEGEND = (
    "ms: median step, ~ where unstable; img/s: images per second; peak: of allocated memory,"
    " in brackets of the process"
)


def run_list_sections(entries: Sequence[RunEntry], now: datetime | None = None) -> list[Section]:
    """The runs of a folder, one line each, the newest on top."""
    moment = now or datetime.now(UTC)
    longest = max((len(entry.id) for entry in entries), default=_ID_CELLS)
    body = [_make_row(entry, moment, max(8, ROOM_FOR_NAMES - longest)) for entry in entries]
    facts = [Fact("runs", f"{len(entries)}; {_LEGEND}" if entries else "no runs")]
    facts += [Fact("next", f"detscope show {entries[0].id}", stays=True)] if entries else []
    facts += [Fact("damaged", entry.reason or "", "warn") for entry in entries if entry.status == "damaged"]
    tones: list[Tone] = ["" if entry.status == "ok" else "warn" for entry in entries]
    table = Table("runs", "Runs", _HEADS, body, brief_rows=len(body), tones=tones)
    return [Section("runs", "Runs", f"{len(entries)} runs", "", [table, Facts(facts)])]


def _make_row(entry: RunEntry, now: datetime, cells: int) -> list[Value]:
    peak = with_unit(entry.peak_bytes, "bytes") if entry.peak_bytes is not None else ""
    if not peak and entry.process_peak_bytes is not None:
        peak = f"({with_unit(entry.process_peak_bytes, 'bytes')})"
    shaky = "~" if entry.stability == "unstable" else ""
    return [
        entry.id,
        _tell_age(entry.time, now),
        shorten_middle(f"{entry.verb or ABSENT} {entry.model or ''}".strip(), cells),
        f"{shaky}{number(entry.ms)}" if entry.ms is not None else "",
        number(entry.images_per_s) if entry.images_per_s is not None else "",
        peak,
        (entry.verdict or "") if entry.status == "ok" else entry.status,
    ]


def _tell_age(stamp: str, now: datetime) -> str:
    """`35m`, `7h` or `3d` of `20261117T234630Z`; of what is no time nothing."""
    try:
        began = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return ""
    minutes = max(0, int((now - began).total_seconds() // 60))
    for unit, size in (("d", 24 * 60), ("h", 60)):
        if minutes >= 2 * size:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"
