"""What a step does beside its model has a name, its time and its line; and a loss that is no module."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from script_listening import Net, batches
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchmetrics import Metric

import detscope
from detscope.analyze.summary import RunSummary, summarize
from detscope.record.model.averages import find_averages
from simulated.clock import WorkingClock, product_reads

PLANTED_S = 0.01
TOLERANCE_MS = 2.0
PLANTED_MS = pytest.approx(1e3 * PLANTED_S, abs=TOLERANCE_MS)
STEPS = 24


CLOCK = WorkingClock()  # what others take of a busy machine is no part's


@pytest.fixture(autouse=True)
def own_clock() -> Iterator[None]:
    with product_reads(CLOCK):
        yield


def sleep_planted() -> None:
    CLOCK.sleep(round(PLANTED_S * 1e9))


class KeptCopy:
    """An average of one's own: known by the copy that it keeps."""

    def __init__(self, model: nn.Module) -> None:
        self.module = copy.deepcopy(model)

    def update(self, model: nn.Module) -> None:
        sleep_planted()
        with torch.no_grad():
            for mine, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


class SlowMetric(Metric):
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, values: torch.Tensor) -> None:
        sleep_planted()
        self.seen += len(values)

    def compute(self) -> torch.Tensor:
        return self.seen


class DerivedMetric(SlowMetric):
    """Calls what it is derived from, as metrics of RF-DETR do."""

    def update(self, values: torch.Tensor) -> None:
        super().update(values.detach())


class SlowHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sleep_planted()


def slow_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    sleep_planted()
    yield from model.parameters()


def slow_loss(output: torch.Tensor) -> torch.Tensor:
    squared = (output - 1).square()
    sleep_planted()
    return squared.mean() + output.abs().mean()


def train(model: nn.Module, steps: Any, metric: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    average, metric = KeptCopy(model), metric or SlowMetric()
    logger = logging.getLogger("a.training")
    logger.setLevel("INFO")
    logger.propagate = False
    logger.handlers = [SlowHandler()]
    for batch in steps:
        output = model(batch)
        metric(output.detach())
        loss = slow_loss(output)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(slow_parameters(model), 1.0)
        optimizer.step()
        schedule.step()
        average.update(model)
        logger.info("a step")


def by_run(listen: Any, _folder: Path) -> RunSummary:
    model = Net()
    with listen() as heard:
        train(model, batches(STEPS))
    return summarize(heard.run)


def by_recorder(_listen: Any, folder: Path) -> RunSummary:
    model = Net()
    optimizer = None  # that of the loop is not known before
    with detscope.Recorder(model, optimizer, folder, telemetry_hz=0) as recorder:
        train(model, recorder.steps([torch.randn(4, 8) for _ in range(STEPS)]))
    return summarize(recorder.run)


def as_shown(summary: RunSummary) -> dict[str, float]:
    """Milliseconds by name: of stages, and of parts beside the model."""
    stages = {row.name: row.total_ms for row in summary.stages if row.depth == 0}
    return stages | {part.name: part.ms for part in summary.parts if part.known == "measured"}


def test_sleeps_planted_beside_a_script_s_model_show_there_and_nowhere_else(listen, tmp_path) -> None:
    summary = by_run(listen, tmp_path)
    shown = as_shown(summary)
    for name in ("metrics", "loss", "clip_gradients", "ema", "logging"):
        assert shown.pop(name) == PLANTED_MS, name
    assert {"zero_grad", "step", "lr_schedule"} <= set(shown)
    assert max(shown.values()) < 1e3 * PLANTED_S - TOLERANCE_MS
    rest = [part.ms for part in summary.parts if part.known != "measured"]
    assert max(rest, default=0.0) < 1e3 * PLANTED_S - TOLERANCE_MS


def test_parts_add_up_to_their_phases_and_phases_to_the_step(listen, tmp_path) -> None:
    summary = by_run(listen, tmp_path)
    phases = {phase.name: phase.ms for phase in summary.phases}
    assert sum(phases.values()) == pytest.approx(summary.step_ms.p50)
    for phase in ("optimizer", "other"):
        parts = [part for part in summary.parts if part.phase == phase]
        assert sum(part.ms for part in parts) == pytest.approx(phases[phase], rel=1e-2, abs=0.05)
    assert {part.name for part in summary.parts if part.phase == "optimizer"} >= {
        "zero_grad",
        "clip_gradients",
        "step",
    }
    calls = {part.name: part.calls for part in summary.parts}
    assert calls["ema"] == calls["step"] == calls["metrics"] == 1.0


def test_a_part_has_the_line_of_the_script_that_called_it(listen, tmp_path) -> None:
    summary = by_run(listen, tmp_path)
    for name in ("metrics", "clip_gradients", "ema", "logging", "step"):
        (part,) = [one for one in summary.parts if one.name == name]
        assert part.own is not None
        assert (part.own.function, part.own.file) == ("train", Path(__file__).name), name
        line = Path(__file__).read_text().splitlines()[part.own.line - 1]
        assert {"ema": "average", "clip_gradients": "clip_grad"}.get(name, name.rstrip("s")[:3]) in line


def test_a_recorder_in_one_s_own_loop_tells_the_same_parts(listen, tmp_path) -> None:
    shown = as_shown(by_recorder(listen, tmp_path))
    for name in ("metrics", "loss", "clip_gradients", "logging"):
        assert shown[name] == PLANTED_MS, name


def test_averages_of_libraries_are_heard(listen) -> None:

    def slow_average(averages: Any, parameters: Any, _steps: Any) -> None:
        sleep_planted()
        torch._foreach_lerp_(averages, parameters, 0.1)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    average = AveragedModel(model, multi_avg_fn=slow_average)
    with listen() as heard:
        for batch in batches(STEPS):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            average.update_parameters(model)
    assert as_shown(summarize(heard.run))["ema"] == PLANTED_MS


def test_a_metric_that_is_only_updated_is_heard_and_works_as_without_us(listen) -> None:
    model, metric = Net(), SlowMetric()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    plain = vars(SlowMetric)["update"]
    with listen() as heard:
        for batch in batches(STEPS):
            optimizer.zero_grad()
            output = model(batch)
            output.sum().backward()
            optimizer.step()
            metric.update(output.detach())
        twin = copy.deepcopy(metric)
        twin.update(output.detach())
        assert b"detscope" not in pickle.dumps(metric)
    assert (metric.compute(), twin.compute()) == (4 * STEPS, 4 * STEPS + 4)
    assert vars(SlowMetric)["update"] is plain
    shown = as_shown(summarize(heard.run))
    assert shown["metrics"] == PLANTED_MS


def test_a_metric_that_calls_the_one_it_is_derived_from_works_as_without_us(listen) -> None:
    model, metric = Net(), DerivedMetric()
    with listen() as heard:
        train(model, batches(STEPS), metric)
    assert metric.compute() == 4 * STEPS
    assert as_shown(summarize(heard.run))["metrics"] > 0


def test_a_checkpoint_is_a_part_whoever_imported_the_function(listen, tmp_path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with listen() as heard:
        for batch in batches(STEPS):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            torch.save(model, tmp_path / "model.pt")
    saved = [part for part in summarize(heard.run).parts if part.name == "checkpoint"]
    assert [(part.phase, part.calls) for part in saved] == [("other", 1.0)]
    assert type(torch.load(tmp_path / "model.pt", weights_only=False)) is Net
    assert torch.save is torch.serialization.save
    assert not hasattr(torch.save, "__wrapped__")


def test_backward_of_a_loss_that_is_a_function_belongs_to_it(listen) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class SlowBackward(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
            sleep_planted()
            return gradient

    with listen() as heard:
        for batch in batches(STEPS):
            optimizer.zero_grad()
            SlowBackward.apply(model(batch)).square().mean().backward()
            optimizer.step()
    summary = summarize(heard.run)
    (loss,) = [stage for stage in summary.stages if stage.name == "loss"]
    assert loss.backward_ms > 1e3 * PLANTED_S - TOLERANCE_MS
    assert loss.forward_ms < 1e3 * PLANTED_S - TOLERANCE_MS
    assert summary.backward_attributed is not None
    assert summary.backward_attributed > 0.99


def test_what_lies_between_model_and_backward_and_makes_no_graph_stays_other(listen) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).square().mean()

    whole = Scalar()
    with listen() as heard:
        for batch in batches(STEPS):
            loss = whole(batch)
            optimizer.zero_grad()
            sleep_planted()
            loss.backward()
            optimizer.step()
    summary = summarize(heard.run)
    assert "loss" not in {stage.name for stage in summary.stages}
    phases = {phase.name: phase.ms for phase in summary.phases}
    assert phases["other"] == PLANTED_MS


def test_models_and_metrics_are_saved_and_copied_as_without_us(listen) -> None:
    model, metric = Net(), SlowMetric()
    with listen():
        train(model, batches(8), metric)
        copied, average = copy.deepcopy(metric), KeptCopy(model)
        assert b"detscope" not in pickle.dumps(copy.deepcopy(model))
        assert KeptCopy.update is type(average).update
    assert vars(KeptCopy)["update"].__qualname__ == "KeptCopy.update"
    assert type(vars(KeptCopy)["update"]).__name__ == "function"
    assert copied.compute() == metric.compute()


def test_an_average_is_known_by_the_copy_it_holds_and_a_trainer_is_none() -> None:
    class Trainer:
        """Holds a copy too, but its step is the training's."""

        def __init__(self, model: nn.Module) -> None:
            self.teacher = copy.deepcopy(model)

        def step(self) -> None: ...

    class ShadowEMA:
        def step(self) -> None: ...

    model = Net()
    kept, trainer = KeptCopy(model), Trainer(model)
    found = {stage.target.rpartition(":")[2] for stage in find_averages(model)}
    assert "KeptCopy.update" in found
    assert any(path.endswith("ShadowEMA.step") for path in found)
    assert not any("Trainer" in path for path in found)
    assert kept.module is not trainer.teacher


def test_what_the_engine_does_before_its_first_node_is_no_modules_time(tmp_path):
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(200))), torch.rand(2, 8)
    with detscope.Recorder(model, out=tmp_path, warmup_steps=1, telemetry_hz=0) as recorder:
        for _ in recorder.steps([x] * 6):
            model(x).sum().backward()
    summary = summarize(recorder.run)
    rows = {row.path: row for row in summary.modules}
    assert rows["autograd"].backward_ms > 0 and rows["autograd"].forward_ms == 0
    assert summary.backward_attributed > 0.99


def test_a_first_node_that_nobody_marked_is_not_taken_for_the_engines(tmp_path):
    model, weight = nn.Linear(8, 8), torch.rand(300, 300, requires_grad=True)
    with detscope.Recorder(model, out=tmp_path, warmup_steps=1, telemetry_hz=0) as recorder:
        for _ in recorder.steps([torch.rand(2, 8)] * 6):
            model(torch.rand(2, 8))
            for _ in range(2):  # the second one goes through nothing of the model
                (weight @ weight @ weight).sum().backward()
    summary = summarize(recorder.run)
    rows = {row.path: row for row in summary.modules}
    assert summary.backward_attributed < 0.9
    assert rows["autograd"].backward_ms < 0.5 * summary.find_phase("backward").ms


def test_functions_that_a_script_holds_are_pickled_as_without_us(tmp_path):
    held = (torch.save, torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_)
    model, x = nn.Linear(8, 1), torch.rand(2, 8)
    plain, found = pickle.dumps(held), []
    with detscope.Recorder(model, out=tmp_path / "runs", telemetry_hz=0) as recorder:
        for _ in recorder.steps([x] * 8):
            model(x).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            torch.save(model, tmp_path / "model.pt")
            found.append(pickle.dumps(held))
    assert set(found) == {plain}
    parts = {part.name: part for part in summarize(recorder.run).parts}
    assert parts["checkpoint"].calls == 1 and parts["clip_gradients"].calls == 1
    assert parts["checkpoint"].own.file == Path(__file__).name
