"""Telemetry on this very process, with real children and a source that breaks."""

import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import psutil
import pytest

from detscope.record.device import telemetry as module
from detscope.record.device.telemetry import Reading, Telemetry, TelemetryRow, until_next_sample_s
from detscope.record.foreign import frames_above


def wait_until(
    telemetry: Telemetry,
    samples: int,
    seen: Callable[[TelemetryRow], bool] | None = None,
    after_ns: int = 0,
) -> list[TelemetryRow]:
    """Drain until that many sampling moments, and such a row, have been seen (or 15 minutes are over).

    Of what was sampled after a moment.
    """
    rows: list[TelemetryRow] = []
    limit = time.monotonic() + 900
    while time.monotonic() < limit:
        if len({row.time_ns for row in rows}) >= samples and (seen is None or any(map(seen, rows))):
            break
        time.sleep(0.01)
        rows += [row for row in telemetry.drain_samples() if row.time_ns > after_ns]
    return rows


class Counting:
    """A source that counts, and breaks when told to."""

    def __init__(self, name: str, breaks_at: int | None = None) -> None:
        self.name = name
        self.notes: dict[str, str] = {}
        self.count = 0
        self.closed = False
        self._breaks_at = breaks_at

    def read_values(self) -> list[Reading]:
        self.count += 1
        if self.count == self._breaks_at:
            raise ValueError("the cable came off")
        return [Reading(self.name, "count", float(self.count), "count")]

    def close(self) -> None:
        self.closed = True


def test_process_and_system_are_sampled_with_units_and_rising_time() -> None:
    begin_ns = time.perf_counter_ns()
    with Telemetry(hz=50) as telemetry:
        rows = wait_until(telemetry, 4)
    rows += telemetry.drain_samples()
    units = {(row.source, row.metric): row.unit for row in rows}
    assert units["process", "cpu_percent"] == "%"
    assert units["process", "rss_bytes"] == "bytes"
    assert units["process", "threads"] == "count"
    assert units["system", "memory_available_bytes"] == "bytes"
    assert ("system", "load_1min") in units
    assert ("core:0", "cpu_percent") in units
    times = [row.time_ns for row in rows]
    assert times == sorted(times)
    assert begin_ns <= times[0] and times[-1] <= time.perf_counter_ns()
    rss = [row.value for row in rows if (row.source, row.metric) == ("process", "rss_bytes")]
    assert all(value > 5e6 for value in rss)


def test_the_first_sample_has_no_cpu_percent_because_nothing_was_measured_yet() -> None:
    with Telemetry(hz=50) as telemetry:
        rows = wait_until(telemetry, 3)
    first = [row for row in rows if row.time_ns == rows[0].time_ns]
    assert {row.metric for row in first}.isdisjoint({"cpu_percent"})
    assert any(row.metric == "cpu_percent" for row in rows)


@pytest.mark.processes
def test_a_busy_child_shows_as_a_busy_worker_and_is_forgotten_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CHILDREN_EVERY_NS", 0)
    code = "print(flush=True)\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # a program that has only just begun has hardly any memory
    source = f"worker:{child.pid}"

    def busy(row: TelemetryRow) -> bool:
        return row.source == source and row.metric == "cpu_percent" and row.value > 0

    try:
        with Telemetry(hz=10) as telemetry:
            rows = wait_until(telemetry, 6, busy)
            child.kill()
            child.wait()
            later = wait_until(telemetry, 3, after_ns=time.perf_counter_ns())
    finally:
        child.kill()
        child.stdout.close()
    metrics = defaultdict(list)
    for row in rows:
        if row.source == source:
            metrics[row.metric].append(row.value)
    assert max(metrics["cpu_percent"]) > 0
    assert min(metrics["rss_bytes"]) > 1e6
    assert not [row for row in later if row.source == source]
    assert source not in telemetry.notes


def test_children_are_not_listed_at_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = module.list_descendants

    def counted(process: psutil.Process) -> list[int]:
        calls.append(time.perf_counter_ns())
        return real(process)

    monkeypatch.setattr(module, "list_descendants", counted)
    monkeypatch.setattr(module, "_CHILDREN_EVERY_NS", 10**15)
    with Telemetry(hz=50) as telemetry:
        wait_until(telemetry, 5)
    assert len(calls) == 1


def test_a_source_that_breaks_is_noted_once_and_dropped_and_the_others_go_on() -> None:
    good, bad = Counting("good"), Counting("bad", breaks_at=2)
    with Telemetry(hz=200, sources=[bad, good]) as telemetry:
        rows = wait_until(telemetry, 6)
        assert telemetry.notes == {"bad": "no more readings: ValueError: the cable came off"}
    assert bad.count == 2
    assert [row.value for row in rows if row.source == "bad"] == [1.0]
    assert len([row for row in rows if row.source == "good"]) >= 6
    assert good.closed and bad.closed


def test_draining_from_another_thread_loses_and_repeats_nothing() -> None:
    source = Counting("source")
    rows: list[TelemetryRow] = []
    with Telemetry(hz=1000, sources=[source]) as telemetry:
        reader = threading.Thread(target=lambda: rows.extend(wait_until(telemetry, 50)))
        reader.start()
        reader.join()
    rows += telemetry.drain_samples()
    assert [row.value for row in rows] == [float(n) for n in range(1, source.count + 1)]
    assert telemetry.drain_samples() == []


def test_rows_nobody_drains_are_bounded_and_the_loss_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 3)
    source = Counting("source")
    with Telemetry(hz=1000, sources=[source]) as telemetry:
        while source.count < 6:
            time.sleep(0.005)
    assert len(telemetry.drain_samples()) == 3
    assert f"{source.count - 3} rows dropped" in telemetry.notes["telemetry"]


def test_a_run_shorter_than_the_period_still_has_a_sample_at_its_end() -> None:
    source = Counting("source")
    with Telemetry(hz=1, sources=[source]) as telemetry:
        wait_until(telemetry, 1)
        time.sleep(0.3)
    assert source.count >= 2


def count_samplers() -> int:
    """Threads of this process that sample; `threading` does not list them."""
    stacks = [list(frames_above(frame)) for frame in sys._current_frames().values()]
    return sum(stack[-1].f_code.co_name == "_run_to_end" for stack in stacks)


def wait_for_samplers() -> None:
    """Until those that were stopped have ended."""
    while count_samplers():
        time.sleep(0.001)


def test_zero_hertz_starts_no_thread() -> None:
    wait_for_samplers()
    with Telemetry(hz=0) as telemetry:
        assert not count_samplers()
    assert telemetry.drain_samples() == []


def test_stopping_ends_the_thread_and_starting_again_works() -> None:
    wait_for_samplers()
    telemetry = Telemetry(hz=100)
    for _ in range(2):
        telemetry.start()
        assert wait_until(telemetry, 2)
        assert count_samplers() == 1
        telemetry.stop()
        wait_for_samplers()
    telemetry.stop()


def test_processes_that_began_at_different_times_sample_at_the_same_moments() -> None:
    moments = {round(now_s + until_next_sample_s(now_s, 0.5, 0.125), 9) for now_s in (7.05, 7.2, 7.37)}
    assert moments == {7.5}


def test_a_sample_right_before_a_common_moment_waits_for_the_one_after() -> None:
    assert until_next_sample_s(7.4, 0.5, 0.125) == pytest.approx(0.6)
    assert until_next_sample_s(7.5, 0.5, 0.125) == pytest.approx(0.5)


def test_no_sample_is_taken_while_a_step_may_not_be_disturbed() -> None:
    source = Counting("counter")
    with Telemetry(hz=0.02, sources=[source]) as telemetry:  # one period is far longer than this test
        wait_until(telemetry, 1)
        telemetry._period_s = 30.0
        telemetry.hold_samples(quiet=True)
        telemetry._free.wait(0.2)
        assert source.count == 1
        telemetry.hold_samples(quiet=False)
    assert source.closed, "holding does not keep it from ending"
