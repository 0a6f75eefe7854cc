"""A finding: a claim about a line of code, what it rests on, what it costs, and what to change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

from detscope.analyze.figure import Clock, Figure
from detscope.analyze.step.beside import CodePlace

Confidence = Literal["certain", "likely", "possible"]

# What a wait and a launch cost on a device, for an estimate; nobody measured them here.
# A wait: the queue runs empty, and the next kernel begins only after the host has woken up and launched it
# (about 10 us for the copy and 20 us until the queue is filled again, seen on data centre GPUs of 2022-2025).
WAIT_MS = 0.03
# A launch: what the host needs for a small operator from Python (about 5 us with the dispatcher).
LAUNCH_MS = 0.005
# A copy from pageable memory: bytes pass a buffer of the driver's.
COPY_BYTES_PER_MS = 6e6
ASSUMES = (
    f"{WAIT_MS * 1e3:g} µs for a wait with the queue run empty, {LAUNCH_MS * 1e3:g} µs for a launch,"
    f" {COPY_BYTES_PER_MS / 1e6:g} GB/s from pageable memory; no device was measured"
)


class DeviceCost(Figure, frozen=True, kw_only=True):
    """What it would cost on a device: an estimate."""

    waits: float  # of the host for the device, per step
    launches: float  # of operators, per step
    bytes: float  # copied between host and device, per step
    ms: float  # per step, if nothing hides it
    assumes: str  # what that rests on


class FindingEvidence(Figure, frozen=True, kw_only=True):
    """Where the claim can be looked up."""

    table: str  # of the run
    rows: int  # of it that speak of this
    steps: tuple[int, ...]  # in which it was seen
    text: str  # in words


class Finding(Figure, frozen=True, kw_only=True):
    """Something at a line of code, or of the whole run, that costs time."""

    id: str  # the same in every run for the same rule and function
    rule: str  # that found it
    claim: str  # what is the case
    where: tuple[CodePlace, ...] = ()  # innermost lines outside of torch, most costly first; none: the run
    called_from: CodePlace | None = None  # the script's own line that leads there
    code: str | None = None  # text of the first line
    evidence: FindingEvidence
    cost_ms: float | None = None  # per step, measured here; None where it cannot be told
    cost_low_ms: float | None = None  # lowest of the steps
    cost_high_ms: float | None = None  # highest of the steps
    clock: Clock = "host"  # whose time the cost is told in
    on_device: DeviceCost | None = None  # estimate
    confidence: Confidence | None = None  # how sure; None: see cannot_tell
    cannot_tell: str | None = None  # why it is not known whether or how much
    change: str  # what to do
    diff: str | None = None  # the same as a unified diff, where it can be written down
    verify: str = ""  # a command that tries it


def make_id(rule: str, where: Iterable[CodePlace]) -> str:
    """The same for the same rule and functions, also when lines move."""
    places = sorted({(place.file, place.function) for place in where})
    digest = hashlib.sha256(repr((rule, places)).encode()).hexdigest()
    return f"{rule}-{digest[:8]}"


def estimate_device(waits: float, launches: float, size: float) -> DeviceCost:
    """What waits, launches and copies would cost."""
    ms = waits * WAIT_MS + launches * LAUNCH_MS + size / COPY_BYTES_PER_MS
    return DeviceCost(waits=waits, launches=launches, bytes=size, ms=ms, assumes=ASSUMES)
