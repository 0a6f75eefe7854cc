"""Two clocks: what was planted on the device comes out, by marks and by kernels; host time does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from detscope.analyze.summary import RunSummary, summarize
from detscope.runs.reader import load_run
from planted_device import SIDE, TALK, Plan, Work, planted_ms, simulate, typical_plan, write_run

WARM = ["warmup"] * 3
MARKED = [*WARM, *["recorded", "recorded", "bare", "recorded"] * 6]
BOTH = [*MARKED, "ops", "ops", "ops"]
KERNELS = [*WARM, *["ops"] * 6]
EVERYWHERE = pytest.mark.parametrize("modes", [MARKED, BOTH, KERNELS], ids=["marks", "both", "kernels"])


def figures(folder: Path, plan: Plan, modes: list[str], **info) -> RunSummary:
    return summarize(load_run(write_run(folder, plan, modes, info)))


def device_ms(summary: RunSummary) -> dict[str, float]:
    return {phase.name: phase.ms for phase in summary.phases}


def busy_ms(summary: RunSummary) -> dict[str, float]:
    return {phase.name: phase.ms - phase.idle_ms for phase in summary.phases}


@EVERYWHERE
def test_phases_add_up_to_the_devices_step_and_the_hosts_to_the_wall(tmp_path, modes) -> None:
    summary = figures(tmp_path, typical_plan(data_ms=3.0, other_ms=2.0), modes)
    assert summary.clocks.clock == "device"
    assert sum(device_ms(summary).values()) == pytest.approx(summary.clocks.device_step_ms)
    assert sum(phase.host_ms for phase in summary.phases) == pytest.approx(summary.step_ms.p50)
    assert {phase.clock for phase in summary.phases} == {"device"}
    assert summary.clocks.busy_ms + summary.clocks.idle_ms == pytest.approx(summary.clocks.device_step_ms)


@EVERYWHERE
def test_a_device_that_is_never_idle_takes_what_was_planted_and_is_called_device_bound(
    tmp_path, modes
) -> None:
    plan = typical_plan(launch_ms=0.1, device_ms=5.0, data_ms=3.0, other_ms=1.0)
    summary = figures(tmp_path, plan, modes)
    emptied = 3.0 / 6 if modes is KERNELS else 0.0  # the window's first step begins with an empty queue
    for phase, ms in planted_ms(plan).items():
        assert device_ms(summary)[phase] == pytest.approx(ms, rel=0.02, abs=0.01 + emptied), phase
    stages = {stage.name: stage for stage in summary.stages}
    assert stages["backbone"].forward_ms == pytest.approx(15.0, rel=0.02)
    assert stages["backbone"].backward_ms == pytest.approx(30.0, rel=0.02)
    assert stages["head"].total_ms == pytest.approx(15.0, rel=0.02)
    modules = {row.path: row for row in summary.modules}
    assert modules["backbone.1"].forward_ms == pytest.approx(10.0, rel=0.02)
    assert modules["backbone.0"].backward_ms == pytest.approx(10.0, rel=0.02)
    assert modules["backbone.0"].idle_ms == pytest.approx(0.0, abs=0.01)
    assert modules["backbone.0"].host_ms != pytest.approx(15.0, rel=0.2), "the host queues, and waits"
    assert summary.clocks.bound == "device-bound"
    assert summary.verdict.startswith("device-bound: ")
    assert "of the device's step; the largest stage is backbone with 68 %" in summary.verdict
    assert summary.clocks.host_ahead_ms > 30
    assert summary.clocks.source == ("marks" if modes is MARKED else "kernels")


@EVERYWHERE
def test_a_device_that_waits_for_launches_is_called_host_bound(tmp_path, modes) -> None:
    plan = typical_plan(launch_ms=5.0, device_ms=1.0)
    summary = figures(tmp_path, plan, modes)
    assert summary.clocks.bound == "host-bound"
    assert "host-bound" in summary.verdict
    if modes is MARKED:
        assert all(cause.at_most for cause in summary.clocks.idle if cause.name != "data")
        assert summary.clocks.busy_share < 0.5, "so much is proved"
    else:
        for phase, ms in planted_ms(plan).items():
            assert busy_ms(summary)[phase] == pytest.approx(ms, rel=0.02, abs=0.01), phase
    forward = summary.find_phase("forward")
    assert forward.ms - forward.idle_ms <= planted_ms(plan)["forward"] * 1.02, "idle is not shown as work"


@EVERYWHERE
def test_a_read_inside_forward_makes_the_hosts_forward_long_and_not_the_devices(tmp_path, modes) -> None:
    plan = typical_plan(launch_ms=0.1, device_ms=5.0, waits=True)
    summary = figures(tmp_path, plan, modes)
    forward = summary.find_phase("forward")
    assert forward.ms == pytest.approx(20.0, rel=0.02)
    assert forward.host_ms > 50, "it waits for the backward pass of the step before"
    assert summary.find_phase("backward").ms == pytest.approx(40.0, rel=0.02)
    assert summary.clocks.bound == "device-bound"
    if modes is MARKED:
        assert summary.clocks.host_waits_ms is None
        assert "--level ops" in summary.clocks.host_waits_why
    else:
        (wait,) = summary.clocks.host_waits
        planted = [wall for step, _, wall in simulate(plan, modes).waits if modes[step] == "ops"]
        assert (wait.call, wait.calls) == ("item", len(planted))
        assert wait.ms == pytest.approx(sum(planted) / modes.count("ops"))


@EVERYWHERE
def test_a_wait_for_data_that_the_device_works_through_is_none(tmp_path, modes) -> None:
    summary = figures(tmp_path, typical_plan(device_ms=5.0, data_ms=40.0), modes)
    data = summary.find_phase("data")
    assert data.host_ms == pytest.approx(40.0, rel=0.05)
    assert data.ms < 8.0, "one wait of the window, whose queue was empty" if modes is KERNELS else ""
    assert modes is KERNELS or data.ms < 0.01
    assert summary.clocks.bound == "device-bound"
    assert summary.loader.wait_ms == data.ms


@EVERYWHERE
def test_a_wait_for_data_that_the_device_shares_is_input_bound(tmp_path, modes) -> None:
    plan = typical_plan(device_ms=5.0, data_ms=120.0)
    summary = figures(tmp_path, plan, modes)
    found = simulate(plan, modes).marks
    told = [
        found[step] for step, mode in enumerate(modes) if mode == ("ops" if modes is KERNELS else "recorded")
    ]
    waited = sum(marks[1].device - marks[0].device for marks in told)
    share = waited / sum(marks[-1].device - marks[0].device for marks in told)
    assert 50 < summary.find_phase("data").ms < 70, "the rest of 120 ms the device works through"
    assert summary.find_phase("data").ms == pytest.approx(share * summary.clocks.device_step_ms, abs=2.0)
    assert summary.clocks.bound == "input-bound"
    assert summary.verdict.startswith("input-bound: waiting for data")


@EVERYWHERE
def test_copies_of_a_prefetcher_lie_beside_the_step(tmp_path, modes) -> None:
    base = typical_plan(device_ms=5.0)
    work = [
        Work("transfer", device_ms=8.0, stream=SIDE),
        *(one for one in base.work if one.phase != "transfer"),
    ]
    summary = figures(tmp_path, Plan(work), modes)
    (beside,) = summary.clocks.side_streams
    assert (beside.phase, beside.ms) == ("transfer", pytest.approx(8.0, rel=0.02))
    assert device_ms(summary)["transfer"] < 1.0
    assert device_ms(summary)["forward"] == pytest.approx(20.0, rel=0.05)
    assert summary.clocks.device_step_ms == pytest.approx(65.0, rel=0.02)


@pytest.mark.parametrize(("modes", "bound"), [(MARKED, "mixed"), (BOTH, "host-bound")], ids=["marks", "both"])
def test_idle_time_that_marks_only_leave_room_for_names_no_one(tmp_path, modes, bound) -> None:
    """Late in forward, ahead in backward: that the host limits the step is proved by kernels alone."""
    base = typical_plan(device_ms=1.0, waits=True).work
    work = [
        replace(one, launch_ms=15.0) if one.phase == "forward" else replace(one, device_ms=10.0)
        for one in base
    ]
    summary = figures(tmp_path, Plan(work), modes)
    assert summary.clocks.host_ahead_ms > 20
    assert summary.clocks.bound == bound
    assert summary.verdict.startswith(f"{bound}: ")


def exchange(device_ms: float) -> Plan:
    """Gradients of the head are exchanged while backward goes on; the update waits for them."""
    base = typical_plan(device_ms=5.0).work
    talk = Work("backward", "head", "head", device_ms=device_ms, stream=TALK)
    before = [work for work in base if work.phase in ("transfer", "forward")]
    backward = [work for work in base if work.phase == "backward"]
    after = [work for work in base if work.phase == "optimizer"]
    return Plan([*before, backward[0], talk, *backward[1:], *after])


def test_exchange_that_nothing_hides_is_communication_bound_and_hidden_exchange_is_not(tmp_path) -> None:
    exposed = figures(tmp_path / "a", exchange(120.0), BOTH)
    assert exposed.clocks.bound == "communication-bound"
    assert exposed.verdict.startswith("communication-bound: ")
    hidden = figures(tmp_path / "b", exchange(20.0), BOTH)
    assert hidden.clocks.bound == "device-bound"
    assert hidden.clocks.communication_ms == pytest.approx(0.0, abs=0.5)
    assert hidden.find_phase("backward").ms == pytest.approx(40.0, rel=0.02)


def test_marks_and_kernels_of_one_run_are_held_against_each_other(tmp_path) -> None:
    summary = figures(tmp_path, typical_plan(device_ms=5.0), BOTH)
    ratios = {(row.kind, row.name): row.ratio for row in summary.clocks.agreement}
    assert ratios["phase", "forward"] == pytest.approx(1.0, abs=0.02)
    assert ratios["stage", "head"] == pytest.approx(1.0, abs=0.02)
    alone = figures(tmp_path, typical_plan(device_ms=5.0), MARKED)
    assert alone.clocks.agreement == ()


def test_modules_without_a_time_of_the_devices_say_why_and_are_not_the_hosts(tmp_path) -> None:
    modules = {row.path: row for row in figures(tmp_path, typical_plan(), MARKED).modules}
    assert (modules["tiny"].total_ms, modules["tiny"].why) == (None, "below its mark: 4.0 us")
    assert (modules["never"].forward_ms, modules["never"].why) == (None, "not marked yet")
    assert modules["never"].host_ms > 0
    assert modules["head"].why is None


@EVERYWHERE
def test_own_times_of_modules_add_up_to_their_phases(tmp_path, modes) -> None:
    summary = figures(tmp_path, typical_plan(data_ms=2.0), modes)
    for phase in ("forward", "backward"):
        own = sum(getattr(row, f"self_{phase}_ms") or 0.0 for row in summary.modules)
        assert own == pytest.approx(summary.find_phase(phase).ms, rel=0.02)


def test_the_machines_drift_does_not_change_what_modules_marked_in_turn_take(tmp_path) -> None:
    """Half of the run at half the speed: a module's share of its phase stays."""
    folder = write_run(tmp_path, typical_plan(), ["recorded"] * 24)
    run = load_run(folder)
    slow = pl.when(pl.col("step") >= 12).then(2).otherwise(1)
    for table in ("device_steps", "device_spans", "steps", "spans"):
        frame = run.table(table)
        longer = [name for name in frame.columns if name.endswith("_ns") and name != "start_ns"]
        frame.with_columns(pl.col(longer) * slow).write_parquet(folder / f"{table}.parquet")
    summary = summarize(folder)
    modules = {row.path: row.forward_ms for row in summary.modules}
    forward = summary.find_phase("forward").ms
    assert modules["backbone.1"] / forward == pytest.approx(0.5, rel=0.02)
    assert modules["head"] / forward == pytest.approx(0.25, rel=0.02)


def test_what_recording_costs_is_told_by_the_devices_time(tmp_path) -> None:
    """Marks that a device works through cost nothing; the host's clock would say 20 %."""
    hidden = figures(tmp_path / "a", typical_plan(device_ms=5.0, mark_ms=2.0), MARKED)
    assert hidden.overhead_ratio.clock == "device"
    assert hidden.overhead_ratio.recorded_over_bare == pytest.approx(1.0, abs=0.02)
    shown = figures(tmp_path / "b", typical_plan(launch_ms=5.0, device_ms=0.5, mark_ms=4.0), MARKED)
    assert shown.overhead_ratio.recorded_over_bare == pytest.approx(1.1, abs=0.02)


def test_a_recorded_steps_tail_in_the_queue_is_not_paid_by_the_bare_step_after_it(tmp_path) -> None:
    """The host reads a result in forward: in a bare step it waits for what the recorded one had queued."""
    summary = figures(tmp_path, typical_plan(device_ms=5.0, waits=True, data_ms=10.0), MARKED)
    assert summary.overhead_ratio.recorded_over_bare == pytest.approx(1.0, abs=0.01)


def test_marks_are_counted_and_their_cost_is_told(tmp_path) -> None:
    clocks = figures(tmp_path, typical_plan(), MARKED).clocks
    assert (clocks.marks_per_step, clocks.mark_us) == (20.0, 4.0)
    assert clocks.marks_share == pytest.approx(20 * 0.004 / 66.0, rel=0.05)
    assert (clocks.below_mark, clocks.unmarked) == (("tiny",), ("never",))


def test_without_marks_the_hosts_time_is_shown_as_the_hosts_with_the_reason(tmp_path) -> None:
    modes = ["recorded"] * 8
    why = {"device_clock": {"source": "marks", "why": "the device has no timing events"}}
    folder = write_run(tmp_path, typical_plan(), modes, why)
    for table in ("device_steps", "device_spans"):
        (folder / f"{table}.parquet").unlink()
    summary = summarize(folder)
    assert (summary.clocks.clock, summary.clocks.why) == ("host", "the device has no timing events")
    assert summary.find_phase("forward").host_ms is None
    assert any("the device has no timing events" in line for line in summary.cannot_tell)


def test_an_outlier_names_the_phase_that_grew_on_the_device_and_the_one_on_the_host(tmp_path) -> None:
    folder = write_run(tmp_path, typical_plan(waits=True), ["recorded"] * 12)
    run = load_run(folder)
    for table, phase in (("steps", "forward"), ("device_steps", "backward")):
        grew = (pl.col("step") == 6) & pl.col("phase").is_in([phase, "step"])
        frame = run.table(table)
        frame.with_columns(
            wall_ns=pl.col("wall_ns") + pl.when(grew).then(90_000_000).otherwise(0)
        ).write_parquet(folder / f"{table}.parquet")
    (outlier,) = summarize(folder).outliers
    assert (outlier.clock, outlier.phase, outlier.host_phase) == ("device", "backward", "forward")
    assert outlier.growth_ms == pytest.approx(90.0, rel=0.02)
    assert "backward took 90.0 ms more than usual on the device, forward" in outlier.why


def test_a_cpu_has_one_clock_and_nothing_beside_it(tmp_path) -> None:
    folder = write_run(tmp_path, typical_plan(), ["recorded"] * 8, {"device": "cpu", "device_clock": None})
    for table in ("device_steps", "device_spans"):
        (folder / f"{table}.parquet").unlink()
    summary = summarize(folder)
    assert (summary.clocks.clock, summary.clocks.why) == ("host", None)
    assert all(phase.host_ms is None and phase.idle_ms is None for phase in summary.phases)
    assert all(row.host_ms is None and row.why is None for row in summary.modules)


def test_the_main_stream_is_the_one_that_computes(tmp_path) -> None:
    """An exchange that takes longer than all computing is still not what the step is made of."""
    summary = figures(tmp_path, exchange(300.0), KERNELS)
    assert summary.clocks.communication_ms > 200
    assert summary.clocks.bound == "communication-bound"
    assert summary.find_phase("forward").ms == pytest.approx(20.0, rel=0.02)
