"""The recorder in a loop that is not ours."""

from __future__ import annotations

import gc
import signal
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import torch
from lagging import LaggingDevice
from torch import nn
from torch.utils.checkpoint import checkpoint

import detscope
from detscope.analyze.summary import summarize
from detscope.errors import UsageError
from detscope.machine.accelerator import KINDS
from detscope.zoo.contract import Observer, Stage


class Net(nn.Module):
    """Small enough for many steps, slow enough in one place to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True))
        self.head = nn.Linear(32, 4)
        self.inside_ns: list[int] = []  # of the region, by this class's own reading of the clock
        self.around_ns: list[int] = []

    def postprocess(self, x: torch.Tensor) -> torch.Tensor:
        before_ns = time.perf_counter_ns()
        with detscope.region("my nms"):
            begin_ns = time.perf_counter_ns()
            time.sleep(0.002)
            self.inside_ns.append(time.perf_counter_ns() - begin_ns)
        self.around_ns.append(time.perf_counter_ns() - before_ns)
        return x * 1.0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.postprocess(self.head(self.backbone(x))).sum()}


STAGES = (Stage("backbone", "backbone"), Stage("head", "head"), Stage("postprocess", "postprocess()"))


def train(
    tmp_path: Path, batches: int = 12, model: nn.Module | None = None, **options
) -> tuple[detscope.Recorder, nn.Module]:
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options.setdefault("stages", STAGES)
    with detscope.Recorder(model, optimizer, tmp_path, telemetry_hz=0, **options) as recorder:
        for x in recorder.steps([torch.rand(2, 16) for _ in range(batches)]):
            optimizer.zero_grad()
            model(x)["loss"].backward()
            optimizer.step()
    return recorder, model


def phase_ms(summary, name):
    return next(phase.ms for phase in summary.phases if phase.name == name)


def stages_ms(summary):
    return {stage.name: stage.total_ms for stage in summary.stages if stage.depth == 0}


def test_a_loop_of_the_user_gives_the_same_tables_as_ours(tmp_path):
    recorder, _ = train(tmp_path)
    summary = summarize(recorder.run)
    assert summary.status == "ok"
    modes = detscope.load_run(recorder.run).table("steps").filter(pl.col("phase") == "step")["mode"].to_list()
    assert (modes.count("warmup"), modes.count("recorded"), modes.count("bare")) == (3, 7, 2)
    # where the machine held up the first recorded steps, they count as warm-up too
    assert summary.step_ms.n + summary.warmup.n == 10
    assert sum(phase.ms for phase in summary.phases) == pytest.approx(summary.step_ms.p50, rel=1e-6)
    rows = {row.path: row for row in summary.modules}
    assert {"(model)", "backbone", "backbone.0", "backbone.1", "head", "postprocess()", "my nms"} <= set(rows)
    assert sum(row.self_forward_ms for row in rows.values()) == pytest.approx(phase_ms(summary, "forward"))
    assert sum(row.self_backward_ms for row in rows.values()) == pytest.approx(phase_ms(summary, "backward"))
    assert rows["head"].backward_ms > 0
    totals = [row.total_ms for row in summary.modules]
    assert totals == sorted(totals, reverse=True), "the most expensive first: views take the first ten"


def test_time_is_found_where_it_is_spent(tmp_path):
    recorder, model = train(tmp_path)
    spans = detscope.load_run(recorder.run).table("spans").filter(pl.col("direction") == "forward")
    by_step = spans.filter(pl.col("kind") != "stage").partition_by("step", as_dict=True)
    assert len(by_step) == 7
    for (step,), rows_of_step in by_step.items():
        found = {row["path"]: row for row in rows_of_step.to_dicts()}
        nms, method = found["my nms"], found["postprocess()"]
        assert 2_000_000 <= model.inside_ns[step] <= nms["self_ns"] <= model.around_ns[step]
        assert nms["self_ns"] == nms["total_ns"]
        assert method["self_ns"] == method["total_ns"] - nms["total_ns"]
    summary = summarize(recorder.run)
    rows = {row.path: row for row in summary.modules}
    assert stages_ms(summary)["postprocess"] == pytest.approx(rows["postprocess()"].total_ms, rel=1e-6)


def test_stages_add_up_to_forward_and_backward(tmp_path):
    summary = summarize(train(tmp_path)[0].run)
    both = phase_ms(summary, "forward") + phase_ms(summary, "backward")
    assert sum(stages_ms(summary).values()) == pytest.approx(both)


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_hooks_come_off_completely_and_the_engine_is_as_it_was(tmp_path):
    engine, zero_grad = torch.autograd._engine_run_backward, torch.optim.SGD.zero_grad
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with detscope.Recorder(model, optimizer, tmp_path, stages=STAGES, telemetry_hz=0) as recorder:
        for x in recorder.steps([torch.rand(2, 16)] * 5):
            model(x)["loss"].backward()
            optimizer.step()
    assert hooks_of(model) == 0
    assert "postprocess" not in vars(model)
    assert torch.autograd._engine_run_backward is engine
    assert "zero_grad" not in vars(optimizer)
    assert torch.optim.SGD.zero_grad is zero_grad
    assert not optimizer._optimizer_step_pre_hooks
    assert detscope.marks.current_listener() is None


def test_an_exception_of_the_user_passes_unchanged_and_the_run_is_failed_with_what_was_recorded(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mine = RuntimeError("mine")
    with pytest.raises(RuntimeError) as caught:
        with detscope.Recorder(model, optimizer, tmp_path, stages=STAGES, telemetry_hz=0) as recorder:
            for index, x in enumerate(recorder.steps([torch.rand(2, 16)] * 9)):
                model(x)["loss"].backward()
                if index == 6:
                    raise mine
                optimizer.step()
    assert caught.value is mine
    run = detscope.load_run(recorder.run)
    assert run.status == "failed"
    assert run.info["reason"] == "RuntimeError: mine"
    assert run.table("steps")["step"].n_unique() >= 6
    assert hooks_of(model) == 0


def test_an_exception_inside_the_model_leaves_no_hook(tmp_path):
    class Failing(Net):
        def postprocess(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("inside")

    model = Failing()
    with (
        pytest.raises(ValueError, match="inside"),
        detscope.Recorder(model, out=tmp_path, telemetry_hz=0) as recorder,
    ):
        for x in recorder.steps([torch.rand(2, 16)]):
            model(x)
    assert hooks_of(model) == 0
    assert detscope.load_run(recorder.run).status == "failed"


def test_leaving_the_loop_early_keeps_the_steps_that_were_done(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with detscope.Recorder(model, optimizer, tmp_path, bare_every=0, telemetry_hz=0) as recorder:
        for index, x in enumerate(recorder.steps([torch.rand(2, 16)] * 50)):
            model(x)["loss"].backward()
            optimizer.step()
            if index == 9:
                break
    run = detscope.load_run(recorder.run)
    assert run.status == "ok"
    assert run.table("steps")["step"].max() == 9


def test_a_worker_that_dies_while_an_abandoned_loop_is_closed_is_told_to_nobody(tmp_path):
    """torch hears of dead workers by a signal, and its handler raises wherever the program is."""

    class Interrupted(detscope.Recorder):
        def _abandon_step(self, complete_if_possible: bool = False) -> None:
            signal.raise_signal(signal.SIGUSR1)
            super()._abandon_step(complete_if_possible)

    def raises(_number, _frame):
        raise RuntimeError("DataLoader worker is killed by signal")

    unheard = []
    before, sys.unraisablehook = sys.unraisablehook, unheard.append
    handler = signal.signal(signal.SIGUSR1, raises)
    try:
        recorder = Interrupted(nn.Linear(2, 2), out=tmp_path)
        recorder.__enter__()
        for _ in recorder.steps([torch.ones(1, 2)] * 3):
            break
        gc.collect()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        recorder.__exit__(None, None, None)
    finally:
        signal.signal(signal.SIGUSR1, handler)
        sys.unraisablehook = before
    assert unheard == []


def test_at_level_phases_no_module_is_touched(tmp_path):
    recorder, _ = train(tmp_path, level="phases")
    summary = summarize(recorder.run)
    assert phase_ms(summary, "forward") > 0
    assert summary.modules == []


def test_at_level_ops_operators_belong_to_modules_in_both_directions(tmp_path):
    recorder, _ = train(tmp_path, level="ops", ops_steps=2)
    summary = summarize(recorder.run)
    found = {(row.name, row.module, row.direction) for row in summary.operators}
    assert ("aten::addmm", "head", "forward") in found
    assert any(module == "head" and direction == "backward" for _, module, direction in found)
    assert summary.backward_attributed == 1.0
    assert summary.backward_attributed_by == "operators"


def test_operators_that_take_too_much_memory_are_recorded_of_fewer_steps_and_that_is_said(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "detscope.record.operators.profiler._FULL_BYTES", -(1 << 60)
    )  # full with the first step
    recorder, _ = train(tmp_path, level="ops", ops_steps=3)
    run = detscope.load_run(recorder.run)
    modes = run.table("steps").filter(pl.col("phase") == "step")["mode"].to_list()
    assert modes.count("ops") == run.info["operators"]["steps"] == 1
    assert any("operators of fewer steps than asked for" in note for note in run.info["notes"])
    assert summarize(recorder.run).backward_attributed == 1.0


def test_checkpointed_modules_show_their_recomputation(tmp_path):
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            hidden = checkpoint(self.backbone, x.requires_grad_(), use_reentrant=False)
            return {"loss": self.head(hidden).sum()}

    recorder, _ = train(tmp_path, model=Checkpointed(), stages=())
    rows = {row.path: row for row in summarize(recorder.run).modules}
    assert rows["backbone"].recompute_ms > 0
    assert rows["head"].recompute_ms == 0


def test_counts_come_from_observers_and_a_broken_observer_breaks_nothing(tmp_path):
    good = Observer("backbone", lambda output: {"proposals": output.shape[0]})
    bad = Observer("head", lambda output: {"detections": output.nothing})
    recorder, _ = train(tmp_path, observers=(good, bad))
    run = detscope.load_run(recorder.run)
    bare = run.table("steps").filter(pl.col("mode") == "bare")["step"].to_list()
    counted = run.table("content").filter(~pl.col("step").is_in(bare))
    assert set(counted["proposals"].to_list()) == {2}
    assert any("cannot tell counts of head" in note for note in run.info["notes"])


def train_on_a_lagging_device(tmp_path, monkeypatch, **options):
    device = LaggingDevice()
    monkeypatch.setitem(KINDS, "cpu", lambda _name: device)
    recorder, _ = train(tmp_path, **options)
    return device, detscope.load_run(recorder.run)


def test_device_times_are_read_late_in_order_and_without_waiting_inside_the_loop(tmp_path, monkeypatch):
    device, run = train_on_a_lagging_device(tmp_path, monkeypatch, batches=30)
    assert device.waits == 4  # three to let both clocks see one moment, one when the recording ends
    steps, found = run.table("steps"), run.table("device_steps")
    timed = steps.filter((pl.col("phase") == "step") & pl.col("mode").is_in(["recorded", "bare", "warmup"]))
    whole = found.filter(pl.col("phase") == "step")
    assert whole["step"].to_list() == timed["step"].to_list()
    recorded = steps.filter(pl.col("mode") == "recorded")["step"].unique().to_list()
    phases = found.filter((pl.col("phase") != "step") & pl.col("step").is_in(recorded))
    assert (
        phases.group_by("step").agg(pl.col("wall_ns").sum()).sort("step")["wall_ns"].to_list()
        == whole.filter(pl.col("step").is_in(recorded))["wall_ns"].to_list()
    )


def test_marks_of_modules_take_turns_and_every_module_has_one(tmp_path, monkeypatch):
    _, run = train_on_a_lagging_device(tmp_path, monkeypatch, batches=30)
    modules = run.table("nodes").filter(pl.col("kind") == "module")["path"].to_list()
    timed = run.table("device_spans").filter(pl.col("kind") == "module")["path"].unique().to_list()
    assert sorted(timed) == sorted(modules)
    assert run.info["device_clock"]["source"] == "marks"
    assert run.info["device_clock"]["unmarked"] == []
    assert run.info["device_clock"]["marks_per_step"] > 8


def test_steps_whose_operators_are_recorded_have_no_marks(tmp_path, monkeypatch):
    _, run = train_on_a_lagging_device(tmp_path, monkeypatch, batches=20, level="ops")
    under_profiler = run.table("steps").filter(pl.col("mode") == "ops")["step"].unique().to_list()
    assert under_profiler
    assert not set(under_profiler) & set(run.table("device_steps")["step"].to_list())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_cuda_device_times_come_from_events(tmp_path):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with detscope.Recorder(model, optimizer, tmp_path, telemetry_hz=0) as recorder:
        for x in recorder.steps([torch.rand(2, 16).cuda()] * 12):
            model(x)["loss"].backward()
            optimizer.step()
    assert detscope.load_run(recorder.run).table("device_steps").filter(pl.col("wall_ns") > 0).height


def test_wrong_options_are_said_at_once(tmp_path):
    with pytest.raises(UsageError, match="level"):
        detscope.Recorder(Net(), out=tmp_path, level="everything")
    with pytest.raises(UsageError, match="modules"):
        detscope.Recorder(Net(), out=tmp_path, modules="some")
