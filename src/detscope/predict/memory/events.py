"""Allocations and frees in the order of a step: what tensor lifetimes are replayed as."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "inputs",
    "activations",
    "temporary",
    "workspace",
)


class MemoryEvent(NamedTuple):
    """A block comes (`bytes` > 0) or goes (`bytes` = 0); a tuple, because a simulation makes thousands."""

    key: int
    bytes: int
    category: str = "temporary"
    stage: str = ""


class EventLog:
    """Collects events; keys are given out in order."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self._next_key = 0
        self._empty: set[int] = set()

    def allocate(self, size_bytes: int, category: str, stage: str = "") -> int:
        """A new block; returns its key. A block of nothing is a key without an event."""
        self._next_key += 1
        if size_bytes > 0:
            self.events.append(MemoryEvent(self._next_key, size_bytes, category, stage))
        else:
            self._empty.add(self._next_key)
        return self._next_key

    def release(self, key: int) -> None:
        """The block goes."""
        if key not in self._empty:
            self.events.append(MemoryEvent(key, 0))

    def take(self) -> list[MemoryEvent]:
        """The events so far; the log goes on empty."""
        taken, self.events = self.events, []
        return taken


def live_by_category(events: Iterable[MemoryEvent]) -> dict[str, int]:
    """Bytes that are live after the events, by category, without any rounding."""
    live: dict[int, MemoryEvent] = {}
    for event in events:
        if event.bytes:
            live[event.key] = event
        else:
            del live[event.key]
    totals = dict.fromkeys(CATEGORIES, 0)
    for event in live.values():
        totals[event.category] += event.bytes
    return totals
