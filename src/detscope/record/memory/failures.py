"""Running out of memory is an answer: which memory, how much was asked for, and where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from detscope.machine.limits import explain_exhausted_memory
from detscope.record.steps.events import ENTER, MARK, decode_events
from detscope.record.steps.nodes import NodeTable

_PLAIN_REQUEST = re.compile(r"tried to allocate (\d+) bytes")
_ROUNDED_REQUEST = re.compile(r"(?:allocate|allocating) ([\d.]+) ?([KMGTP]i?B|bytes|B)\b")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_MESSAGE_LENGTH = 500


@dataclass(frozen=True)
class MemoryFailure:
    """What the failed request says of itself."""

    status: str  # oom_host, oom_device
    device: str
    request_bytes: int | None  # None: the message does not say
    message: str


def find_out_of_memory(error: BaseException | None, device: str) -> MemoryFailure | None:
    """What ran out, if that is what the error says or was caused by."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found = explain_exhausted_memory(error)
        if found is not None:
            which, text = found
            where = device if which == "device" else "cpu"
            lines = (line for line in text.splitlines() if read_requested_bytes(line) is not None)
            message = next(lines, text)[:_MESSAGE_LENGTH]
            return MemoryFailure(f"oom_{which}", where, read_requested_bytes(text), message)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def read_requested_bytes(message: str) -> int | None:
    """The bytes an allocator's message names; those of CUDA and numpy are rounded to two or three digits."""
    plain = _PLAIN_REQUEST.search(message)
    if plain:
        return int(plain[1])
    rounded = _ROUNDED_REQUEST.search(message)
    if not rounded:
        return None
    return round(float(rounded[1].rstrip(".")) * 1024.0 ** _POWERS.get(rounded[2][0], 0))


def locate_failure(events: Sequence[int], nodes: NodeTable, failed_in: int | None) -> dict[str, str | None]:
    """Phase and module in which a step ended by an exception; `failed_in` is the module it left first."""
    phase = find_open_phase(events, nodes)
    marked = None
    for number, what, _, _ in decode_events(events, backwards=True):
        node = nodes[number]
        if what == MARK and marked is None:
            marked = node.path
        if node.kind == "phase":  # the exception ended it: nothing of the step came after
            phase = phase or node.path
            break
    if phase == "backward":
        return {"phase": phase, "module": marked}
    module = nodes[failed_in].path if failed_in is not None and phase == "forward" else None
    return {"phase": phase or "other", "module": module}


def find_open_phase(events: Sequence[int], nodes: NodeTable) -> str | None:
    """A phase that began and whose end nobody saw: optimizers say nothing when they fail."""
    for number, what, _, _ in decode_events(events, backwards=True):
        if nodes[number].kind == "phase":
            return nodes[number].path if what == ENTER else None
    return None
