"""The self-test: right where the product is, wrong where it is not; on this CPU and on a simulated device."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from detscope.cli.main import app
from detscope.machine.accelerator import CudaAccelerator, find_accelerator
from detscope.sessions.selftest import checks, planted
from detscope.sessions.selftest.checks import EVERYWHERE, ON_DEVICES, Recordings
from detscope.sessions.selftest.planted import Workbench
from detscope.sessions.selftest.session import SelfTest, run_selftest
from simulated import OperatorCall, simulate
from simulated.clock import WorkingClock, product_reads

MS = 1_000_000


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "SMALLEST_S", 0.002)
    monkeypatch.setattr(planted, "_SIDE", 16)  # a simulated device computes with this machine's CPU


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def only_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others take of a busy machine passes no clock: neither the recorder's nor the self-test's own.

    torch's profiler has the system's clock, so that a recorder has it too where it reads the profiler.
    """
    clock, record = WorkingClock(), Workbench.record

    def record_own_work(bench: Workbench, level: str = "modules", **options: Any) -> Any:
        with nullcontext() if level == "ops" else product_reads(clock):
            return record(bench, level, **options)

    monkeypatch.setattr(Workbench, "record", record_own_work)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now() / 1e9)  # by it the work's size is chosen


def cost(call: OperatorCall) -> int:
    """A product takes a millisecond."""
    return MS if call.name == "aten::mm" else 10_000


def verdicts(found: SelfTest) -> dict[str, str]:
    return {row.name: f"{row.verdict} {row.why}".strip() for row in found.rows}


@pytest.mark.usefixtures("only_own_work")
def test_on_this_cpu_every_row_is_right_and_there_is_a_block_to_paste(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--selftest", "--device", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [
        (row["name"], row["verdict"], row["why"]) for row in found["rows"] if row["verdict"] != "right"
    ] == []
    assert len(found["rows"]) == len(EVERYWHERE)
    block = found["paste"]
    assert block.startswith("```text\ndetscope doctor --selftest --device cpu\n")
    assert all(row["name"] in block for row in found["rows"])
    assert str(Path.home()) not in block


@pytest.mark.usefixtures("one_thread", "only_own_work")
def test_a_module_whose_time_the_product_doubles_turns_its_row_to_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detscope.analyze import summary
    from detscope.analyze.step import modules

    def double(rows: Any) -> Any:
        return [
            msgspec.structs.replace(row, forward_ms=2 * row.forward_ms) if row.path == "middle" else row
            for row in real(rows)
        ]

    real = modules.sort_modules
    for place in (modules, summary):
        if hasattr(place, "sort_modules"):
            monkeypatch.setattr(place, "sort_modules", double)
    recordings = Recordings(Workbench.prepare(find_accelerator("cpu"), tmp_path))
    row = checks.check_forward(recordings)
    assert (row.verdict, row.why) == ("wrong", "off by more than 5% and 0.5 ms")
    assert checks.check_backward(recordings).verdict == "right"


@pytest.mark.usefixtures("one_thread")
def test_memory_that_ran_out_unnoticed_turns_its_row_to_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detscope.record.step_recorder.find_out_of_memory", lambda *_: None)
    recordings = Recordings(Workbench.prepare(find_accelerator("cpu"), tmp_path))
    assert checks.check_out_of_memory(recordings).verdict == "wrong"


def test_a_check_that_fails_is_wrong_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(_: Recordings) -> Any:
        """A thing that breaks."""
        raise ValueError("it broke")

    monkeypatch.setattr("detscope.sessions.selftest.session.EVERYWHERE", (fall_over,))
    found = run_selftest("cpu")
    assert found.rows[0].verdict == "wrong"
    assert found.rows[0].why == "ValueError: it broke"
    assert found.wrong == 1


def test_a_device_without_the_self_test_is_a_mistake() -> None:
    assert CliRunner().invoke(app, ["doctor", "--device", "cpu"]).exit_code == 2


def test_on_a_simulated_device_every_row_is_right() -> None:
    with simulate(cost=cost, capacity=2 << 30):
        found = run_selftest("cuda:0")
    assert {name: said for name, said in verdicts(found).items() if said != "right"} == {}
    assert len(found.rows) == len(EVERYWHERE) + len(ON_DEVICES)
    assert "name: Simulated Device" in found.write_block()


def test_a_device_clock_that_runs_at_half_speed_is_found_by_the_wall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CudaAccelerator.elapsed_ns
    monkeypatch.setattr(CudaAccelerator, "elapsed_ns", lambda self, first, last: real(self, first, last) // 2)
    with simulate(cost=cost, capacity=2 << 30):
        recordings = Recordings(Workbench.prepare(find_accelerator("cuda:0"), tmp_path))
        assert checks.check_clock(recordings).verdict == "wrong"


def test_a_wait_that_is_counted_as_work_is_found_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's phases in the place of the device's: a synchronisation inside forward shows it."""
    monkeypatch.setattr("detscope.analyze.step.clocks.read_marks", lambda run: None)
    with simulate(cost=cost, capacity=2 << 30):
        recordings = Recordings(Workbench.prepare(find_accelerator("cuda:0"), tmp_path))
        row = checks.check_synchronisation(recordings)
    assert row.verdict == "wrong", row
