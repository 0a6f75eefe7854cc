"""How a sweep goes on, in the terminal: one line per device while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from detscope.report.progress import duration_text, printable

_LINE_EVERY_S = 5.0
_DRAW_EVERY_S = 0.25
_FAILURES_SHOWN = 3


class TrialLike(Protocol):
    """A trial as far as it is shown."""

    def describe_trial(self) -> str:
        """In a few words."""


class PreparedLike(Protocol):
    """A trial and where it runs."""

    @property
    def trial(self) -> TrialLike:
        """What is run."""

    @property
    def device_name(self) -> str:
        """Where."""


class OutcomeLike(Protocol):
    """How it ended."""

    @property
    def kind(self) -> str:
        """ok, skipped, or a failure."""

    @property
    def status_text(self) -> str:
        """The same with its reason."""

    @property
    def latency_why(self) -> str | None:
        """Why the measured latency cannot be used; None where it can, or was not asked for."""


@dataclass
class _Line:
    """One device."""

    total: int
    done: int = 0
    failed: int = 0
    skipped: int = 0
    began: float = 0.0
    last_end: float = 0.0  # when the last trial ended
    now: str = ""

    def line_text(self, device: str, clock: float) -> str:
        ended = self.done + self.failed + self.skipped
        left = self.total - ended
        parts = [f"{device}: {ended}/{self.total}", f"{self.done} ok", f"{self.failed} failed"]
        parts += [f"{self.skipped} skipped", f"{left} left"]
        tried = self.done + self.failed
        if left and tried:
            parts.append(f"ETA {duration_text(self._time_left(clock, tried, left))}")
        elif not left:
            parts.append(f"in {duration_text(clock - self.began)}")
        return "  ".join(parts + ([f"now {self.now}"] if left and self.now else []))

    def _time_left(self, clock: float, tried: int, left: int) -> float:
        """By the mean of trials that ended; counts down, and stands still while one takes longer."""
        each = (self.last_end - self.began) / tried
        return max(each * (left - 1), each * left - (clock - self.last_end))


@dataclass
class SweepLines:
    """Progress on stderr: plain lines now and then, or lines that are drawn over on a terminal."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    quiet: bool = False
    unusable: int = 0  # rows whose latency cannot be used
    _lines: dict[str, _Line] = field(default_factory=dict)
    _failures: list[str] = field(default_factory=list)
    _next: float = 0.0
    _drawn: int = 0
    _said: str = ""

    def begin_sweep(self, devices: Mapping[str, Sequence[PreparedLike]]) -> None:
        """What is to be run, by device."""
        now = self.clock()
        self._lines = {device: _Line(len(trials), began=now) for device, trials in devices.items()}
        self._show_lines(now)

    def start_trial(self, prepared: PreparedLike) -> None:
        """A trial begins."""
        self._lines[prepared.device_name].now = printable(prepared.trial.describe_trial())
        self.redraw_lines()

    def end_trial(self, prepared: PreparedLike, outcome: OutcomeLike, final: bool) -> None:
        """An attempt has ended."""
        line = self._lines[prepared.device_name]
        if not final:
            self.add_note(f"{prepared.trial.describe_trial()}: {outcome.status_text}; tried again")
            return
        if outcome.kind != "skipped":
            line.last_end = self.clock()
        if outcome.kind == "ok":
            line.done += 1
            self._warn_of_latency(prepared, outcome)
        elif outcome.kind == "skipped":
            line.skipped += 1
        else:
            line.failed += 1
            words = printable(f"{prepared.trial.describe_trial()}: {outcome.status_text}")
            self._failures = [*self._failures, words][-_FAILURES_SHOWN:]
            self._say_line(f"failed: {words}")
        self.redraw_lines()

    def _warn_of_latency(self, prepared: PreparedLike, outcome: OutcomeLike) -> None:
        """A row whose latency nobody can use is told while it can still be measured again."""
        if outcome.latency_why is not None:
            self.unusable += 1
            self._say_line(f"note: {printable(prepared.trial.describe_trial())}: {outcome.latency_why}")

    def redraw_lines(self) -> None:
        """Draw if it is time to."""
        now = self.clock()
        if now >= self._next:
            self._show_lines(now)

    def add_note(self, text: str) -> None:
        """A line of its own."""
        self._say_line(f"note: {printable(text)}")

    def finish_sweep(self) -> None:
        """The last state stays."""
        self._show_lines(self.clock())
        self._drawn = 0
        if self.unusable:
            self.add_note(
                f"{self.unusable} rows are of no use for latency, `fit` will leave their latency out:"
                " measure them again on a quiet machine"
            )

    def _say_line(self, text: str) -> None:
        if not self.quiet:
            self._clear_lines()
            self.stream.write(text + "\n")
            self.stream.flush()

    def _clear_lines(self) -> None:
        if self._drawn:
            self.stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _show_lines(self, now: float) -> None:
        if self.quiet:
            return
        terminal = self.stream.isatty()
        texts = [line.line_text(printable(device), now) for device, line in self._lines.items()]
        self._next = now + (_DRAW_EVERY_S if terminal else _LINE_EVERY_S)
        if terminal:
            self._clear_lines()
            self._drawn = len(texts)
        elif self._said == "\n".join(texts):
            return
        self._said = "\n".join(texts)
        self.stream.write("".join(f"{text[:200]}\n" for text in texts))
        self.stream.flush()
