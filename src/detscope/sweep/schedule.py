"""Trials one after another per device: skipping, retrying, stopping. Where they run is somebody else's."""

from __future__ import annotations

import itertools
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from detscope.machine.interrupts import expect_interrupt, interrupt_once
from detscope.sweep.outcome import Outcome, explain_skip, is_failure
from detscope.sweep.prepare import PreparedTrial
from detscope.sweep.process import SweepStoppedError

TICK_S = 0.25


class TrialRunner(Protocol):
    """Something that runs trials, one at a time."""

    def run_trial(self, request: Mapping[str, Any], stop: threading.Event) -> Outcome:
        """Run one; `SweepStoppedError` if the sweep is to end."""

    def close_runner(self) -> None:
        """Leave nothing behind."""


@dataclass(frozen=True)
class TrialEnd:
    """An attempt has ended; not final: it will be tried again."""

    prepared: PreparedTrial
    outcome: Outcome
    attempt: int
    final: bool


Event = PreparedTrial | TrialEnd  # a trial begins, or an attempt has ended


@dataclass
class FirstFailures:
    """The smallest batch at which each group of trials failed, and what its larger ones are told."""

    found: dict[tuple[object, ...], tuple[int, str]] = field(default_factory=dict)

    def note_failure(self, prepared: PreparedTrial, kind: str, status: str) -> None:
        """Remember a failure."""
        trial = prepared.trial
        group, batch = (prepared.device_name, *trial.group_key), trial.batch_size
        if is_failure(kind) and (group not in self.found or batch < self.found[group][0]):
            self.found[group] = (batch, explain_skip(kind, status, batch))

    def find_reason(self, prepared: PreparedTrial) -> str | None:
        """Why this trial need not be run."""
        found = self.found.get((prepared.device_name, *prepared.trial.group_key))
        return found[1] if found is not None and prepared.trial.batch_size > found[0] else None


@dataclass(frozen=True)
class QueueRules:
    """How a queue is worked off."""

    retries: int
    till_first_fail: bool
    failures: FirstFailures


def run_queues(
    queues: Mapping[str, Sequence[PreparedTrial]],
    make_runner: Callable[[str], TrialRunner],
    rules: QueueRules,
    stop: threading.Event,
    lanes: Mapping[str, int] | None = None,
) -> Iterator[Event | None]:
    """Work off every device's queue; None comes when nothing has happened for a moment."""
    events: queue.Queue[Event | BaseException | None] = queue.Queue()
    threads = [
        threading.Thread(
            target=_work_off, args=(waiting, make_runner, device, rules, stop, events), daemon=True
        )
        for device, trials in queues.items()
        for waiting in [deque(trials)]
        for _ in range((lanes or {}).get(device, 1))
    ]
    for thread in threads:
        thread.start()
    working = len(threads)
    try:
        while working:
            try:
                event = events.get(timeout=TICK_S)
            except queue.Empty:
                yield None
                continue
            if isinstance(event, BaseException):
                raise event
            if event is None:
                working -= 1
            else:
                yield event
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work_off(
    waiting: deque[PreparedTrial],
    make_runner: Callable[[str], TrialRunner],
    device: str,
    rules: QueueRules,
    stop: threading.Event,
    events: queue.Queue[Event | BaseException | None],
) -> None:
    """One device."""
    runner: TrialRunner | None = None
    try:
        runner = make_runner(device)
        while not stop.is_set():
            try:
                prepared = waiting.popleft()
            except IndexError:
                break
            _run_with_retries(prepared, runner, rules, stop, events)
    except SweepStoppedError:
        pass
    except BaseException as error:
        events.put(error)
    finally:
        if runner is not None:
            runner.close_runner()
        events.put(None)


def _run_with_retries(
    prepared: PreparedTrial,
    runner: TrialRunner,
    rules: QueueRules,
    stop: threading.Event,
    events: queue.Queue[Event | BaseException | None],
) -> None:
    reason = rules.failures.find_reason(prepared) if rules.till_first_fail else None
    if reason is not None:
        events.put(TrialEnd(prepared, Outcome("skipped", reason), 1, final=True))
        return
    for attempt in itertools.count(1):
        events.put(prepared)
        outcome = runner.run_trial(prepared.request, stop)
        final = not (outcome.luck and attempt <= rules.retries)
        if final:
            rules.failures.note_failure(prepared, outcome.kind, outcome.status_text)
        events.put(TrialEnd(prepared, outcome, attempt, final))
        if final:
            return


class StopSignals:
    """Ctrl-C and SIGTERM: the first ends the sweep after abandoning what runs, the second at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.heard: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # signals are heard there only
            expect_interrupt()
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear_signal(self, number: int, _frame: FrameType | None) -> None:
        again = self.heard is not None
        self.heard = number
        self.stop.set()
        if again:
            interrupt_once()
