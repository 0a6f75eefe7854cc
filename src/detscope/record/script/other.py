"""Where `other` goes: while no phase runs, a timer looks which of the script's functions is running.

Ten milliseconds lie between two looks, each of some microseconds and only outside of all phases. Waking up so
often costs a loop that fills all cores 1.2 % of its time, so a timer that finds hardly any `other` to look at
wakes up ten times less, until there is some.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from detscope.record.code_lines import CodeLine, CodeLook, look_at
from detscope.record.foreign import UnlistedThread

PERIOD_S = 0.01
IDLE_PERIOD_S = 0.1
_RECENT = 100  # turns after which it is asked whether looking is worth it
_RECENT_IDLE = 10
_WORTH = 0.03  # share of turns that fell outside of all phases
_SHOWN, _SHOWN_INSIDE = 8, 3


Function = tuple[str, str]  # its name and file


class LookPace:
    """How long to sleep between two turns: short while there is something to look at. Pure."""

    def __init__(self) -> None:
        self._turns = self._seen = 0
        self.period_s = PERIOD_S

    def count_turn(self, seen: bool) -> None:
        """A turn fell outside of all phases, or did not."""
        self._turns += 1
        self._seen += seen
        idle = self.period_s == IDLE_PERIOD_S
        if idle and self._seen > 1:
            self.period_s = PERIOD_S
        elif self._turns < (_RECENT_IDLE if idle else _RECENT):
            return
        elif self._seen < _WORTH * self._turns:
            self.period_s = IDLE_PERIOD_S
        self._turns = self._seen = 0


class OtherSampler:
    """A thread that asks `whose` which thread to look at (None: a phase is running) and counts places."""

    def __init__(self, whose: Callable[[], int | None]) -> None:
        self._whose = whose
        self._end = threading.Event()
        self._awake = threading.Event()
        self._awake.set()
        self._thread = UnlistedThread(self._run_thread)
        self._pending: list[tuple[int, CodeLook]] = []  # and when
        self.forget_looks()

    def forget_looks(self) -> None:
        """What was seen so far was in steps that the figures are not about."""
        self.looks: Counter[CodeLook] = Counter()
        self._steps: Counter[Function] = Counter()  # steps in which a function was seen

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._end.set()
        self._awake.set()
        self._thread.join()

    def hold_looks(self, asleep: bool) -> None:
        """Sleep through the coming step, which is compared with those that were looked at; or wake up."""
        if asleep:
            self._awake.clear()
        else:
            self._awake.set()

    def take_step(self, counts: bool) -> None:
        """A step has ended: what was seen in it counts, or does not."""
        seen, self._pending = [look for _, look in self._pending], []
        if counts:
            self.looks.update(seen)
            self._steps.update({(look.own.function, look.own.file) for look in seen})

    def forget_since(self, since_ns: int) -> None:
        """What was seen since then turned out to be no `other`."""
        self._pending = [one for one in self._pending if one[0] < since_ns]

    def look_once(self) -> bool:
        """See once which of the script's functions is running; whether there was something to look at."""
        thread = self._whose()
        if thread is None:
            return False
        seen = look_at(sys._current_frames().get(thread))
        if seen is not None and self._whose() is not None:
            self._pending.append((perf_counter_ns(), seen))
        return True

    def _run_thread(self) -> None:
        pace = LookPace()
        while not self._end.wait(pace.period_s):
            self._awake.wait()
            pace.count_turn(self.look_once())

    def make_rows(self, other_ms: float | None, unheard: float = 1.0) -> list[dict[str, Any]]:
        """The script's functions by their share of `other`, each with the line that was seen most.

        `unheard` is the share of `other` in no part that was measured: only that is looked at. `inside` has
        the functions of packages that ran in it, `steps` in how many steps it was seen.
        """
        own: Counter[CodeLine] = Counter()
        inside: dict[Function, Counter[CodeLine]] = defaultdict(Counter)
        for look, times in self.looks.items():
            own[look.own] += times
            if look.inside is not None:
                inside[look.own.function, look.own.file][look.inside] += times
        whole = own.total() / unheard if unheard else 0.0
        rows = _make_function_rows(own, whole)[:_SHOWN]
        for row in rows:
            function = (row["function"], row["file"])
            row["ms"] = None if other_ms is None else row["share_of_other"] * other_ms
            row["steps"] = self._steps[function]
            row["inside"] = _make_function_rows(inside[function], whole)[:_SHOWN_INSIDE]
        return rows


def _make_function_rows(lines: Counter[CodeLine], whole: float) -> list[dict[str, Any]]:
    by_function: dict[Function, Counter[CodeLine]] = defaultdict(Counter)
    for line, times in lines.items():
        by_function[line.function, line.file][line] += times
    rows = []
    for seen in sorted(by_function.values(), key=lambda seen: -seen.total()):
        ((line, _),) = seen.most_common(1)
        rows.append(
            {
                **line._asdict(),
                "share_of_other": seen.total() / whole if whole else 0.0,
                "looks": seen.total(),
            }
        )
    return rows
