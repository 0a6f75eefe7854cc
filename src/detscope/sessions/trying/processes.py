"""Commands in fresh processes, recorded by turns: without and with changes, there and back again."""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from detscope.analyze.compare.results import Results, check_results, read_results
from detscope.analyze.compare.trying import (
    LEAST_ROUNDS,
    Attempt,
    PairJudge,
    RunCost,
    read_cost,
    weigh_results,
)
from detscope.errors import DetscopeError, InputError, UsageError
from detscope.report.progress import Progress
from detscope.runs.folder import find_run
from detscope.runs.reader import Run, load_run

_BUDGET = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h)$")
_SLOWEST = 5.0  # times the longest run of the base: then a changed one hangs
_PATIENCE_S = 60.0  # beside that


def parse_budget(text: str) -> float:
    """`90s`, `5m` or `1h` in seconds."""
    match = _BUDGET.match(text.strip())
    if match is None:
        raise UsageError(f"--budget {text!r} is not a time", "for example --budget 5m or --budget 90s")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def detscope_command() -> list[str]:
    """What starts this detscope again."""
    beside = Path(sys.executable).with_name("detscope")  # `-m` would look for modules in the current folder
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "detscope"]


def name_folder(parent: Path, verb: str) -> Path:
    """Where a try keeps its runs; two that begin in the same second have folders of their own."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return (parent / f"{verb}-{stamp}-{secrets.token_hex(2)}").absolute()


def record_once(
    command: Sequence[str],
    folder: Path,
    log: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    most_s: float | None = None,
) -> Run:
    """Run a command that records into a folder, in a fresh process; its output goes into the log."""
    with log.open("ab") as lines:
        lines.write(f"$ {shlex.join(command)}\n".encode())
        lines.flush()
        try:
            done = subprocess.run(
                command,
                stdout=lines,
                stderr=lines,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env=env,
                timeout=most_s,
                check=False,
            )
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}", "") from error
        except subprocess.TimeoutExpired as error:
            raise InputError(
                f"{shlex.join(command)} had not ended after {most_s:.0f} s", f"its output is in {log}"
            ) from error
    if done.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        raise InputError(
            f"{shlex.join(command)} ended with {done.returncode}: {' '.join(last)[:200]}",
            f"its output is in {log}",
        )
    return load_run(find_run("latest", folder))


@dataclass
class TriedSide:
    """One command, where it runs, and what its processes recorded."""

    command: list[str]
    folder: Path
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    runs: list[Run] = field(default_factory=list)
    costs: list[RunCost] = field(default_factory=list)
    results: list[Results] = field(default_factory=list)
    longest_s: float = 0.0
    failure: str | None = None  # why it cannot run
    attempt: Attempt | None = None  # what the last look said of it
    decided: bool = False

    def record(self, log: Path, most_s: float | None = None) -> None:
        """One more process."""
        begin = time.monotonic()
        run = record_once(self.command, self.folder, log, cwd=self.cwd, env=self.env, most_s=most_s)
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        self.costs.append(read_cost(run))
        self.results.append(read_results(run))
        self.runs.append(run)


@dataclass(frozen=True)
class Turns:
    """How often and how long at most; two rounds in any case."""

    rounds: int
    budget_s: float

    def are_over(self, number: int, begin_s: float) -> bool:
        """Whether another round like those before would be too many or end too late."""
        spent_s = time.monotonic() - begin_s
        return number >= LEAST_ROUNDS and (
            number >= self.rounds or spent_s + spent_s / number > self.budget_s
        )


def take_turns(
    base: TriedSide,
    changes: Sequence[TriedSide],
    turns: Turns,
    log: Path,
    progress: Progress,
    tolerance: float,
) -> None:
    """Record base and changes by turns until each change is decided, or rounds or time are used up.

    Results that differ settle a change, whatever its time, and so do those that cannot be compared. A change
    that cannot run is left out from then on; a base that cannot run is an error.
    """
    for side in (base, *changes):
        side.folder.mkdir(parents=True, exist_ok=True)
    judges = [PairJudge(turns.rounds) for _ in changes]
    begin_s, number = time.monotonic(), 0
    progress.start(turns.rounds, "pairs")
    try:
        while True:
            waiting = [side for side in changes if not side.decided and side.failure is None]
            sides = [base, *waiting]
            for side in sides if number % 2 == 0 else reversed(sides):
                _record_side(side, base, log)
            number += 1
            progress.advance()
            is_last = turns.are_over(number, begin_s)
            for side, judge in zip(changes, judges, strict=True):
                if side in waiting and side.failure is None:
                    side.attempt, side.decided = judge.look_at(base.costs, side.costs, is_last)
                    checked = check_results(base.results, side.results, tolerance).verdict
                    side.decided |= number >= LEAST_ROUNDS and checked in ("different", "cannot tell")
            if is_last or all(side.decided or side.failure for side in changes):
                return
    finally:
        progress.finish()


def conclude(base: TriedSide, changed: TriedSide, tolerance: float) -> Attempt:
    """The verdict of all pairs, with the results in it."""
    if changed.failure is not None or changed.attempt is None:
        why = f"the command fails with the change: {changed.failure}"
        attempt = Attempt(verdict="reject", why=why)
    else:
        checked = check_results(base.results, changed.results, tolerance)
        attempt = weigh_results(changed.attempt, checked)
    before, after = (tuple(str(run.folder) for run in side.runs) for side in (base, changed))
    return msgspec.structs.replace(attempt, runs_before=before, runs_after=after)


def _record_side(side: TriedSide, base: TriedSide, log: Path) -> None:
    if side is base:
        return side.record(log)
    try:
        side.record(log, _SLOWEST * base.longest_s + _PATIENCE_S if base.longest_s else None)
    except DetscopeError as error:  # a change that cannot run is an answer, too
        side.failure = error.message
    return None
