from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest
from rich.console import Console

from detscope.report.progress import (
    BarProgress,
    LineProgress,
    QuietProgress,
    duration_text,
    make_progress,
    pace_texts,
)


class OwnClock:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(total: int | None, steps: int, seconds_per_step: float) -> list[str]:
    clock, stream = OwnClock(), io.StringIO()
    progress = LineProgress(stream, clock)
    progress.start(total, "training")
    for _ in range(steps):
        clock.now += seconds_per_step
        progress.advance(loss=0.53219)
    progress.finish()
    return stream.getvalue().splitlines()


def test_a_steady_piece_of_work_gives_a_line_every_tenth() -> None:
    lines = lines_of(200, 200, 0.1)
    assert len(lines) == 11
    assert lines[0] == "training: 0/200"
    assert lines[1] == "training: 20/200 (10 %)  10.0/s  ETA 0:18  loss 0.5322"
    assert lines[-1] == "training: 200/200 (100 %)  10.0/s  in 0:20  loss 0.5322"


def test_a_quick_piece_of_work_says_only_what_it_did() -> None:
    assert [line.split(" ")[1] for line in lines_of(200, 200, 0.001)] == ["0/200", "200/200"]


def test_a_slow_piece_of_work_gives_a_line_every_five_seconds() -> None:
    lines = lines_of(1000, 20, 1.0)
    assert [line.split(" ")[1] for line in lines[1:]] == ["5/1000", "10/1000", "15/1000", "20/1000"]


def test_work_of_unknown_size_shows_count_and_rate() -> None:
    assert lines_of(None, 12, 1.0) == [
        "training",
        "training: 5  1.0/s  loss 0.5322",
        "training: 10  1.0/s  loss 0.5322",
        "training: 12  1.0/s  loss 0.5322",
    ]


def test_work_that_stops_early_says_how_far_it_came() -> None:
    assert lines_of(100, 13, 0.1)[-1].startswith("training: 13/100 (13 %)")


@pytest.mark.parametrize("total", [0, 1, 3, 7])
def test_small_totals_end_at_a_hundred_percent_once(total: int) -> None:
    lines = lines_of(total, total, 0.1)
    assert sum(line.startswith(f"training: {total}/{total} ") for line in lines) == (1 if total else 0)


def test_two_pieces_of_work_follow_each_other() -> None:
    clock, stream = OwnClock(), io.StringIO()
    progress = LineProgress(stream, clock)
    progress.start(4, "fetching")
    progress.advance()
    progress.start(2, "training")
    progress.note("a\nnote \x1b[2J")
    progress.finish()
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "fetching: 0/4",
        "fetching: 1/4 (25 %)",
        "training: 0/2",
        "note: a note  [2J",
    ]


def bar(clock: OwnClock) -> tuple[BarProgress, FakeTerminal]:
    terminal = FakeTerminal()
    return BarProgress(
        Console(file=terminal, force_terminal=True, width=120, _environ={"TERM": "xterm"}), clock
    ), terminal


def test_the_bar_shows_count_percentage_rate_time_left_and_loss() -> None:
    clock = OwnClock()
    progress, terminal = bar(clock)
    progress.start(40, "training [bold]x[/]")
    clock.now += 10
    progress.advance(10, loss=1.5)
    text = terminal.getvalue()
    assert "training [bold]x[/]" in text
    assert "10/40 (25 %)  1.0/s  ETA 0:30  loss 1.5" in text
    progress.finish()


def test_the_bar_is_drawn_at_most_four_times_a_second() -> None:
    clock = OwnClock()
    progress, terminal = bar(clock)
    progress.start(10_000, "training")
    before = terminal.getvalue()
    for _ in range(24):
        clock.now += 0.01
        progress.advance()
    assert terminal.getvalue() == before
    clock.now += 0.02
    progress.advance()
    assert "25/10000" in terminal.getvalue()[len(before) :]
    progress.finish()


def test_a_bar_that_is_slow_to_draw_is_drawn_less_often() -> None:
    clock = OwnClock()

    class SlowTerminal(FakeTerminal):
        def write(self, text: str) -> int:
            clock.now += 0.01
            return super().write(text)

    terminal = SlowTerminal()
    progress = BarProgress(
        Console(file=terminal, force_terminal=True, width=120, _environ={"TERM": "xterm"}), clock
    )
    progress.start(1000, "training")
    before = len(terminal.getvalue())
    clock.now += 0.5
    progress.advance()
    assert len(terminal.getvalue()) == before
    clock.now += 10
    progress.advance()
    assert len(terminal.getvalue()) > before
    progress.finish()


def test_an_unfinished_bar_gives_the_cursor_back() -> None:
    clock = OwnClock()
    progress, terminal = bar(clock)
    progress.start(None, "training")
    progress.advance()
    progress.finish()
    progress.finish()
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


def test_the_kind_of_progress_fits_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    assert isinstance(make_progress(quiet=True, stream=FakeTerminal()), QuietProgress)
    assert isinstance(make_progress(stream=FakeTerminal()), BarProgress)
    assert isinstance(make_progress(stream=io.StringIO()), LineProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress(stream=FakeTerminal()), LineProgress)


def functions_called(work: Callable[[], object]) -> int:
    """How many functions of Python ran: what a piece of work costs, on every machine the same."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("kind", ["bar", "lines"])
def test_advancing_costs_little_beside_drawing(kind: str) -> None:
    """An advance that draws nothing looks at the clock and no more."""
    clock = OwnClock()
    progress = bar(clock)[0] if kind == "bar" else LineProgress(io.StringIO(), clock)
    progress.start(10**9, "training")
    advancing = functions_called(lambda: progress.advance(loss=1.0))
    clock.now += 60
    drawing = functions_called(lambda: progress.advance(loss=1.0))
    assert advancing == 3  # what is measured itself, `advance` and the clock
    assert drawing > advancing
    progress.finish()


def test_durations_and_paces_read_well() -> None:
    assert [duration_text(seconds) for seconds in (7, 754, 3723)] == ["0:07", "12:34", "1:02:03"]
    assert pace_texts(2, 10, 4.0) == ["2.0 s each", "ETA 0:16"]
    assert pace_texts(0, 10, 4.0) == []
