"""Progress on stderr: a bar on a terminal, plain lines elsewhere, nothing when asked to be quiet.

Drawing happens inside `advance`, never in a thread of its own: a thread would take the
interpreter lock away from the code being measured at moments nobody chose.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

Clock = Callable[[], float]

_DRAW_EVERY_S = 0.25
_LINE_EVERY_S = 5.0
_LINE_GAP_S = 1.0  # quick work says only what it did
# A bar that is slow to draw is drawn less often, so that drawing stays below 0.5 % of the time.
_DRAW_SHARE = 0.005


class Progress(Protocol):
    """Something that shows how far the work is. One piece of work at a time, one after another."""

    def start(self, total: int | None, label: str) -> None:
        """Begin a piece of work of `total` units (None: not known)."""

    def advance(self, n: int = 1, **info: str | float | None) -> None:
        """`n` more units are done; `info` (loss=...) is shown beside the count. Cheap."""

    def note(self, text: str) -> None:
        """Show a line of its own."""

    def finish(self) -> None:
        """The piece of work has ended, in whatever way."""


def make_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """The progress that fits: quiet, a bar for a terminal, lines for a file or a pipe."""
    if quiet:
        return QuietProgress()
    from rich.console import Console

    console = Console(file=stream or sys.stderr, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return BarProgress(console)
    return LineProgress(stream or sys.stderr)


class QuietProgress:
    """Shows nothing."""

    def start(self, total: int | None, label: str) -> None:
        """Nothing to show."""

    def advance(self, n: int = 1, **info: str | float | None) -> None:
        """Nothing to show."""

    def note(self, text: str) -> None:
        """Nothing to show; notes are kept in the run."""

    def finish(self) -> None:
        """Nothing to end."""


class LineProgress:
    """A line every tenth of the work or every five seconds, whichever comes first; one a second at most."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._label: str | None = None
        self._total: int | None = None
        self._done = self._shown = 0
        self._began = self._next_time = 0.0
        self._next_count: float = 0
        self._info: Mapping[str, str | float | None] = {}

    def start(self, total: int | None, label: str) -> None:
        """Begin; the first line says what and how much."""
        self.finish()
        self._label, self._total, self._done, self._shown, self._info = label, total, 0, 0, {}
        self._began = self._clock()
        self._plan_next_line(self._began)
        self._write(label if total is None else f"{label}: 0/{total}")

    def advance(self, n: int = 1, **info: str | float | None) -> None:
        """Count, and write a line if one is due."""
        self._done += n
        self._info = info
        now = self._clock()
        tenth = self._done >= self._next_count and now >= self._next_time - _LINE_EVERY_S + _LINE_GAP_S
        if self._label is not None and (tenth or now >= self._next_time):
            self._show(now)

    def note(self, text: str) -> None:
        """Write the note as a line."""
        self._write(f"note: {printable(text)}")

    def finish(self) -> None:
        """Write how far it came, unless the last line says so already."""
        if self._label is not None and self._done != self._shown:
            self._show(self._clock())
        self._label = None

    def _plan_next_line(self, now: float) -> None:
        self._next_time = now + _LINE_EVERY_S
        tenth = (self._total or 0) / 10
        self._next_count = (int(self._done / tenth) + 1) * tenth if tenth else float("inf")

    def _show(self, now: float) -> None:
        parts = [f"{self._label}: {count_text(self._done, self._total)}"]
        parts += pace_texts(self._done, self._total, now - self._began)
        parts += info_texts(self._info)
        self._shown = self._done
        self._plan_next_line(now)
        self._write("  ".join(parts))

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class BarProgress:
    """A bar with count, percentage, rate and time left, redrawn at most four times a second."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._bar: RichProgress | None = None
        self._total: int | None = None
        self._done = 0
        self._began = self._next_draw = 0.0
        self._info: Mapping[str, str | float | None] = {}

    def start(self, total: int | None, label: str) -> None:
        """Begin a bar; an earlier one is ended."""
        from rich.progress import BarColumn, Progress, TextColumn

        self.finish()
        self._total, self._done, self._info = total, 0, {}
        self._began = self._clock()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar.add_task(printable(label), total=total, state=count_text(0, total))
        self._bar.start()
        self._draw(self._began)

    def advance(self, n: int = 1, **info: str | float | None) -> None:
        """Count, and draw if it is time to."""
        self._done += n
        self._info = info
        now = self._clock()
        if now >= self._next_draw:
            self._draw(now)

    def note(self, text: str) -> None:
        """Print the note above the bar."""
        self._console.print(f"note: {printable(text)}", markup=False)

    def finish(self) -> None:
        """Leave work that did not come to its end standing; of the rest its results will speak."""
        if self._bar is not None:
            self._draw(self._clock())
            self._bar.live.transient = self._total is not None and self._done >= self._total
            self._bar.stop()
            self._bar = None

    def _draw(self, now: float) -> None:
        if self._bar is None:
            return
        texts = [count_text(self._done, self._total), *pace_texts(self._done, self._total, now - self._began)]
        state = "  ".join(texts + info_texts(self._info))
        self._bar.update(self._bar.task_ids[0], completed=self._done, state=state, refresh=True)
        drawn = self._clock()
        self._next_draw = drawn + max(_DRAW_EVERY_S, (drawn - now) / _DRAW_SHARE)


def count_text(done: int, total: int | None) -> str:
    """`3/20 (15 %)`, or `3` where the total is not known."""
    return f"{done}/{total} ({100 * done // total} %)" if total else str(done)


def pace_texts(done: int, total: int | None, elapsed_s: float) -> list[str]:
    """Rate and time left, as far as they can be told."""
    if done <= 0 or elapsed_s <= 0:
        return []
    rate = done / elapsed_s
    texts = [f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"]
    if total and done < total:
        texts.append(f"ETA {duration_text((total - done) / rate)}")
    elif total:
        texts.append(f"in {duration_text(elapsed_s)}")
    return texts


def duration_text(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def info_texts(info: Mapping[str, str | float | None]) -> list[str]:
    """`loss 0.532` for each thing told beside the count."""
    return [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {printable(str(value))}"
        for key, value in info.items()
        if value is not None
    ]


def printable(text: str) -> str:
    """Text on one line, without characters that would steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
