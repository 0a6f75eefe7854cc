"""Memory timelines of torch.profiler: `export_memory_timeline` to a raw .json(.gz), or to a .json by moments.

Raw: a list of [time in ns, action, signed bytes, category]; time -1 is what was alive before recording
began, and gets no time in `memory_changes`. By moments: [times in us, sizes by category at each].
A moment is a stretch of neighbouring changes with one time (those without a time are the first);
"index 744" of a published figure counts moments, and a moment's level is the one after its last change.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import msgspec

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.sink import Format, Sink

# torch's order of categories in these files -> ours; one of theirs has no equal here and keeps its name
CATEGORIES = ["parameters", "optimizer", "inputs", "temporary", "activations", "gradients"]
CATEGORIES += ["autograd detail", "unknown"]
_ACTIONS = (1, 2, 3, 4)  # alive before, allocated, written again (two rows that add up to 0), freed
DEVICE = "recorded device"  # these files are about one device and do not name it
_ROW = re.compile(rb"\[\s*(-?\d{1,19})\s*,\s*([1-4])\s*,\s*(-?\d{1,18})\s*,\s*([0-7])\s*\]")
_RAW_HEAD = re.compile(rb"\s*\[\s*\[\s*-?\d{1,19}\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]")
_MOMENTS_HEAD = re.compile(rb"\s*\[\s*\[\s*-?\d{1,19}\s*(?:,\s*-?\d{1,19}\s*){5,}")
_RAW = msgspec.json.Decoder(list[tuple[int, int, int, int]])
_MOMENTS = msgspec.json.Decoder(tuple[list[int], list[list[int]]])


Change = tuple[int, int, int, int]  # time, action, signed bytes, category


def recognize_head(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """A list of lists of whole numbers: four each, or times."""
    return bool(_RAW_HEAD.match(head) or _MOMENTS_HEAD.match(head))


def read_timeline(path: Path, sink: Sink) -> None:
    """Put the changes of allocated bytes into the sink."""
    recorded = RecordedFile(path)
    data = recorded.read_whole()
    is_raw = _RAW_HEAD.match(data[:4096]) is not None
    rows = _read_raw(data, sink) if is_raw else _read_moments(path, data)
    if recorded.error:
        sink.add_note("the file is packed and cut: changes after its end are missing")
    if not rows:
        raise InputError(f"{path.name} has no change of memory", "export the timeline again")
    times = [row[0] for row in rows]
    sink.add_rows(
        "memory_changes",
        {
            "time_ns": [time if time >= 0 else None for time in times],
            "device": [DEVICE] * len(rows),
            "category": [CATEGORIES[row[3]] for row in rows],
            "delta_bytes": [row[2] for row in rows],
        },
    )
    moments = 1 + sum(earlier != later for earlier, later in pairwise(times))
    kind = "raw" if is_raw else "by moments"
    sink.info.update(format=f"torch.profiler memory timeline, {kind}", changes=len(rows), moments=moments)
    sink.cannot_tell("which device, module or tensor: the file tells changes by category only")
    sink.cannot_tell("reserved memory: the file tells allocated bytes only")


def _read_raw(data: bytes, sink: Sink) -> list[Change]:
    """All rows; of a damaged file those that are whole."""
    try:
        rows = _RAW.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        rows = [tuple(map(int, match)) for match in _ROW.findall(data)]  # type: ignore[misc]
        sink.add_note(f"the file is damaged or cut: {len(rows)} changes could be read")
    kept = [
        row for row in rows if row[1] in _ACTIONS and 0 <= row[3] < len(CATEGORIES) and _is_plausible(row)
    ]
    sink.add_count("changes with an unknown action or category", len(rows) - len(kept))
    return kept


def _is_plausible(row: Change) -> bool:
    return -(2**62) < row[0] < 2**62 and -(2**56) < row[2] < 2**56


def _read_moments(path: Path, data: bytes) -> list[Change]:
    """Differences between neighbouring moments; sizes begin with a 0 that torch keeps for drawing."""
    try:
        times, sizes = _MOMENTS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"{path.name} is damaged: {str(error).splitlines()[0][:120]}", "export the timeline again"
        ) from error
    width = len(CATEGORIES) + 1
    if len(times) != len(sizes) or any(len(row) != width for row in sizes):
        raise InputError(f"{path.name} has times and sizes that do not match", "export the timeline again")
    rows = [
        (time_us * 1000, 2 if now > before else 4, now - before, category)
        for time_us, earlier, later in zip(times, [[0] * width, *sizes], sizes, strict=False)
        for category, (before, now) in enumerate(zip(earlier[1:], later[1:], strict=True))
    ]
    return [row for row in rows if row[2] and _is_plausible(row)]


PART = Format("memory timeline", recognize_head, read_timeline, order=30)
