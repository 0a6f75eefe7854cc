"""A device that lags, fails, or captures a graph: the program does what it does without us, rows are kept."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from lagging import LaggingDevice
from script_listening import Net, batches, train
from torch import nn

import detscope
from detscope.machine.accelerator import KINDS
from detscope.record.device.clock import DeviceClock


@pytest.fixture
def device(monkeypatch):
    """The device on which models are."""
    made = LaggingDevice()
    monkeypatch.setitem(KINDS, "cpu", lambda _name: made)
    return made


def phases_make_the_step(run: detscope.Run) -> None:
    found = run.table("device_steps").filter(pl.col("stream") == 0)
    whole = found.filter(pl.col("phase") == "step")
    recorded = run.table("steps").filter(pl.col("mode") == "recorded")["step"].unique()
    assert recorded.len() > 5
    for step, wall_ns in whole.filter(pl.col("step").is_in(recorded.implode()))[
        "step", "wall_ns"
    ].iter_rows():
        parts = found.filter((pl.col("step") == step) & (pl.col("phase") != "step"))
        assert parts["wall_ns"].sum() == wall_ns > 0


def test_a_step_that_turns_out_to_have_ended_earlier_takes_its_marks_along(listen, device):
    model = Net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model.body, model.head)]
    with listen() as heard:
        for batch in batches(24):
            for _ in range(2):  # the second optimizer rests: borders are known when the first steps again
                model(batch).sum().backward()
                optimizers[0].step()
    assert heard.steps == 48
    phases_make_the_step(detscope.load_run(heard.run))


def test_after_a_device_has_failed_the_script_sees_its_own_error_and_what_was_recorded_is_kept(
    listen, device
):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(RuntimeError, match="assert triggered"), listen() as heard:
        for number, batch in enumerate(batches(30)):
            if number == 20:
                device.broken_after = device.queued
            model(batch).sum().backward()
            optimizer.step()
            if number == 22:
                raise RuntimeError("CUDA error: device-side assert triggered")
    run = detscope.load_run(heard.run)
    assert run.info["status"] == "failed"
    assert run.table("steps").filter(pl.col("phase") == "step").height >= 20
    assert "assert triggered" in run.info["device_clock"]["why"]
    assert run.info["device_clock"]["steps_lost"] >= 1


def test_a_recorder_on_a_device_that_failed_writes_what_it_has(tmp_path, device):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = detscope.Recorder(model, optimizer, tmp_path, telemetry_hz=0)
    with pytest.raises(RuntimeError, match="the user's"), recorder:
        for number, batch in enumerate(recorder.steps(batches(20))):
            model(batch).sum().backward()
            optimizer.step()
            if number == 12:
                device.broken_after = device.queued
                raise RuntimeError("the user's own")
    run = detscope.load_run(recorder.run)
    assert run.info["status"] == "failed"
    assert run.table("steps").filter(pl.col("phase") == "step").height >= 12


def test_while_a_graph_is_captured_nothing_is_asked_of_the_device(listen, device):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device.lag = 10
    with listen() as heard:
        for number, batch in enumerate(batches(24)):
            device.capturing = 8 <= number < 12  # a whole step, and its border, inside of a capture
            model(batch).sum().backward()
            optimizer.step()
            device.capturing = False
    assert device.asked_while_capturing == 0
    run = detscope.load_run(heard.run)
    assert run.info["device_clock"]["why"] is None
    phases_make_the_step(run)


def test_a_mark_on_a_side_stream_is_waited_for_as_well_and_told_beside_the_step():
    device = LaggingDevice(lag=0)
    clock = DeviceClock(device)
    clock.set_anchor()
    main, side = clock.record(), clock.record()
    assert main is not None and side is not None
    side = side._replace(stream=8)
    late = []
    device.has_passed = lambda mark: mark is not side.event or bool(late)
    assert not clock.have_passed([side, main])
    late.append(True)
    assert clock.have_passed([side, main])


def test_hooks_of_a_script_start_no_driver(listen, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append("is_available"))
    monkeypatch.setattr(torch.cuda, "init", lambda: asked.append("init"))
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: asked.append("lazy init"))
    model = Net()
    with listen():
        train(model, batches(6), torch.optim.SGD(model.parameters(), lr=0.01))
    assert asked == []


def test_losses_are_read_when_they_have_been_copied_and_not_before(device):
    from detscope.loops.train import MOST_LATE, LossWatch

    told: list[tuple[int, float]] = []
    device.lag = 10**9
    watch = LossWatch(lambda step, values: told.append((step, values["loss"])), device)
    marks: list[Late] = []

    class Late(list):  # a mark of the device that can be waited for
        def synchronize(self) -> None:
            device.passed = max(device.passed, self[0])

    device.make_mark = lambda: marks.append(Late([0])) or marks[-1]  # type: ignore[func-returns-value]
    for step in range(MOST_LATE + 2):
        watch.take_losses(step, {"a": torch.tensor(float(step))}, [{}], 0.1)
        assert len(told) <= max(0, step - MOST_LATE + 1)
    device.passed = device.queued
    watch.take_losses(99, {"a": torch.tensor(7.0)}, [{}], 0.1)
    watch.read_pending()
    assert [step for step, _ in told] == [*range(MOST_LATE + 2), 99]


def test_a_loss_module_and_its_model_are_heard_on_the_device(listen, device):
    model = nn.Sequential(Net(), nn.ReLU())
    with listen() as heard:
        train(model, batches(20), torch.optim.SGD(model.parameters(), lr=0.01))
    spans = heard.table("device_spans")
    assert {"0.body", "0.head", "1"} <= set(spans["path"].to_list())
