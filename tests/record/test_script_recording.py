"""Loops as people write them, in this process, with the hooks on: what is found of them."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import polars as pl
import pytest
import torch
from script_listening import Net, batches, train
from torch import nn

from detscope.analyze.summary import summarize


def test_a_loop_with_loader_loss_module_and_evaluation_is_taken_apart(listen: Any) -> None:
    model, criterion = Net(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training, testing = batches(8), batches(3)
    with listen() as heard:
        for _ in range(2):
            model.train()
            train(model, training, optimizer, criterion)
            model.eval()
            with torch.no_grad():
                for batch in testing:
                    model(batch)
    parts = heard.script["parts"]
    assert (parts["training"]["steps"], parts["evaluation"]["steps"]) == (16, 6)
    steps = heard.table("steps")
    whole = steps.filter(pl.col("phase") == "step")
    assert whole.filter(pl.col("mode") == "evaluation").height == 6
    assert whole.filter(pl.col("mode") != "evaluation").height == 16
    for number in whole.filter(pl.col("mode") == "recorded")["step"]:
        of_step = {row["phase"]: row["wall_ns"] for row in steps.filter(pl.col("step") == number).to_dicts()}
        assert sum(ns for phase, ns in of_step.items() if phase != "step") == of_step["step"]
        assert all(of_step[phase] > 0 for phase in ("data", "forward", "backward", "optimizer"))
    roles = {root["class"]: root["role"] for root in heard.script["roots"]}
    assert roles["Net"] == "model"
    assert roles["MSELoss"].startswith("loss")
    paths = set(heard.table("spans")["path"].to_list())
    assert {"head", "body.2", "[MSELoss]"} <= paths
    assert whole.filter(pl.col("mode") == "recorded")["epoch"].unique().sort().to_list() == [0, 1]


def test_backward_time_belongs_to_modules_and_to_the_loss(listen: Any) -> None:
    model, criterion = Net(256), nn.MSELoss()
    with listen(level="ops") as heard:
        train(model, batches(10), torch.optim.SGD(model.parameters(), lr=0.1), criterion)
    assert heard.info["operators"]["steps"] == 3
    assert heard.info["operators"]["backward_attributed"] == 1.0


def test_a_script_whose_operators_take_too_much_memory_gets_a_shorter_window(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detscope.record.operators.profiler._FULL_BYTES", -(1 << 60))
    model = Net()
    with listen(level="ops") as heard:
        train(model, batches(10), torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    assert heard.info["operators"]["steps"] == 1
    assert any("operators of fewer steps than asked for" in note for note in heard.info["notes"])


def test_operators_of_a_window_that_evaluation_cut_in_two_are_counted_together(listen: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen(level="ops") as heard:
        for _ in range(3):
            train(model, batches(5), optimizer)
            with torch.no_grad():
                for batch in batches(2):
                    model(batch)
    assert heard.steps == 15
    assert heard.info["operators"]["steps"] == 3
    ops = heard.table("ops").filter((pl.col("name") == "aten::addmm") & (pl.col("direction") == "forward"))
    assert ops["count"].sum() == 3 * 3  # three layers in three steps; evaluation has none


def test_accumulated_gradients_make_one_step_of_several_batches(listen: Any) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with listen() as heard:
        for number, batch in enumerate(batches(20)):
            model(batch).sum().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert heard.steps == 10
    assert heard.script["batches_per_step"] == 2
    assert heard.script["optimizers"] == ["AdamW"]
    assert "gradients are accumulated: 2 batches per step" in heard.info["notes"]


def test_a_scaler_that_leaves_a_step_out_still_ends_the_step(listen: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with listen() as heard:
        for number, batch in enumerate(batches(8)):
            loss = model(batch).sum() * (float("inf") if number == 3 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert heard.steps == 8
    assert heard.script["optimizer_steps_skipped"] == 1


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # by LBFGS of torch 2.8
def test_a_closure_s_forward_and_backward_are_not_optimizer_time(listen: Any) -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    with listen() as heard:
        for batch in batches(8):

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(batch).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)
    assert heard.steps == 8
    recorded = heard.table("steps").filter(pl.col("mode") == "recorded")
    for phase in ("forward", "backward", "optimizer"):
        assert recorded.filter(pl.col("phase") == phase)["wall_ns"].min() > 0  # type: ignore[operator]


def test_many_steps_on_one_batch_are_many_steps(listen: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with listen() as heard:
        batch = next(iter(batches(1)))
        for _ in range(9):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    assert heard.steps == 9


def test_an_averaged_copy_and_a_teacher_are_told_apart_from_the_model(listen: Any) -> None:
    model, teacher = Net(), Net(16)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        for batch in batches(8):
            with torch.no_grad():
                wanted = teacher(batch)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch), wanted).backward()
            optimizer.step()
            average.update_parameters(model)
        average.eval()
        with torch.no_grad():
            for batch in batches(3):
                average(batch)
    roles = {(root["class"], tuple(root["inside"])): root["role"] for root in heard.script["roots"]}
    assert roles["Net", ()] in ("model", "teacher (no gradients)")
    assert sorted(root["role"] for root in heard.script["roots"]) == sorted(
        ["model", "teacher (no gradients)", roles["Net", ("AveragedModel",)]]
    )
    assert roles["Net", ("AveragedModel",)].startswith("copy of the model")
    assert heard.script["parts"]["evaluation"]["steps"] == 3
    assert heard.info["model"]["parameters"] == sum(p.numel() for p in model.parameters())


def test_evaluation_before_training_does_not_get_into_the_figures(listen: Any) -> None:
    model = Net()
    with listen(level="ops") as heard:
        with torch.no_grad():
            for batch in batches(9):
                model(batch)
        train(model, batches(15), torch.optim.SGD(model.parameters(), lr=0.1))
    parts = heard.script["parts"]
    assert (parts["training"]["steps"], parts["evaluation"]["steps"]) == (15, 9)
    whole = heard.table("steps").filter(pl.col("phase") == "step").sort("step")
    assert whole["mode"].to_list()[:9] == ["evaluation"] * 9
    assert whole["mode"].to_list()[9:12] == ["warmup"] * 3
    directions = heard.table("ops")["direction"].unique().to_list()
    assert "backward" in directions
    recorded = whole["mode"].to_list().count("recorded")
    assert recorded >= 5
    summary = summarize(heard.run)  # type: ignore[arg-type]
    # where the machine held up the first recorded steps, they count as warm-up too
    assert summary.step_ms.n + summary.warmup.n == recorded + 3


def test_only_evaluation_counts_forward_passes(listen: Any) -> None:
    model = Net().eval()
    with listen() as heard, torch.no_grad():
        for _ in range(12):
            model(torch.randn(4, 8))
    assert heard.script["parts"]["evaluation"]["steps"] == 12
    modes = heard.table("steps").filter(pl.col("phase") == "step")["mode"].to_list()
    assert modes[:3] == ["warmup"] * 3
    assert "recorded" in modes


def test_other_threads_run_as_always_and_are_said_to_be_not_attributed(listen: Any) -> None:
    model, other = Net(), Net()
    results: list[torch.Tensor] = []

    def predict() -> None:
        with torch.no_grad():
            results.append(other(torch.ones(1, 8)))

    with listen() as heard:
        for batch in batches(6):
            train(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1))
            thread = threading.Thread(target=predict)
            thread.start()
            thread.join()
    assert heard.steps == 6
    assert len(results) == 6
    assert any("more than one thread" in note for note in heard.info["notes"])


def test_checkpointed_parts_are_recomputed_and_no_roots(listen: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    class Saving(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.body, x, use_reentrant=False))

    model = Saving()
    with listen() as heard:
        train(model, batches(8), torch.optim.SGD(model.parameters(), lr=0.1))
    assert [root["class"] for root in heard.script["roots"]] == ["Saving"]
    assert "recompute" in heard.table("spans")["direction"].to_list()


def test_a_caught_error_in_an_optimizer_does_not_swallow_what_follows(listen: Any) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise FloatingPointError

    model = Net()
    failing, good = Failing(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        for batch in batches(8):
            model(batch).sum().backward()
            with pytest.raises(FloatingPointError):
                failing.step()
            model(batch).sum().backward()
            good.step()
            good.zero_grad()
    assert heard.steps == 8
    assert any("optimizer step raised" in note for note in heard.info["notes"])
    recorded = heard.table("steps").filter((pl.col("mode") == "recorded") & (pl.col("phase") == "forward"))
    assert recorded["wall_ns"].min() > 0  # type: ignore[operator]


def test_memory_of_a_script_s_steps_is_recorded(listen: Any) -> None:
    model = Net(128)
    with listen(memory=True) as heard:
        train(model, batches(14), torch.optim.AdamW(model.parameters()))
    memory = heard.table("memory")
    assert {"parameters", "gradients", "optimizer", "activations"} <= set(memory["category"].to_list())
    assert len(heard.info["memory"]["steps"]) == 5


def test_results_are_the_same_with_and_without_listening(listen: Any) -> None:
    def result() -> torch.Tensor:
        torch.manual_seed(3)
        model = Net()
        train(model, batches(8, shuffle=True), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    plain = result()
    with listen():
        heard = result()
    assert torch.equal(plain, heard)


def test_a_model_can_be_copied_and_pickled_while_it_is_recorded(listen: Any) -> None:
    model = Net()
    with listen():
        for number, batch in enumerate(batches(6)):
            train(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1))
            if number == 4:
                again = pickle.loads(pickle.dumps(model))
    assert isinstance(again(torch.ones(1, 8)), torch.Tensor)


def test_our_own_failure_does_not_become_the_script_s(listen: Any) -> None:
    model = Net()
    heard = listen()
    steps = 0
    with pytest.raises(RuntimeError, match="no more room"), heard:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(9):
            train(model, [batch], optimizer)
            steps += 1
            recorder = heard.tracker.recording._recorder
            if steps == 5:

                def full(*_: Any) -> None:
                    raise RuntimeError("no more room")

                recorder.tables.add_step = full
    assert steps == 9
    assert heard.info["status"] == "partial"
    assert "no more room" in heard.info["reason"]


@pytest.mark.parametrize("how", ["model", "function", "part"])
def test_compiled_code_is_timed_by_phases_and_said_to_be_closed(listen: Any, how: str) -> None:
    model = Net()
    called: Any = model
    with listen() as heard:
        if how == "model":
            called = torch.compile(model, backend="eager")
        elif how == "function":
            called = torch.compile(lambda batch: model(batch), backend="eager")
        else:
            model.body = torch.compile(model.body, backend="eager")  # type: ignore[assignment]
        train(called, batches(9), torch.optim.SGD(model.parameters(), lr=0.1))
    torch._dynamo.reset()
    assert heard.steps == 9
    assert any(note.startswith("torch.compile:") for note in heard.info["notes"])
    assert heard.info["level"] == "phases"
    recorded = heard.table("steps").filter((pl.col("mode") == "recorded") & (pl.col("phase") == "backward"))
    assert recorded["wall_ns"].min() > 0  # type: ignore[operator]


def test_the_model_inside_of_a_wrapper_is_the_one_that_is_taken_apart(listen: Any) -> None:
    model = Net()
    with listen() as heard:
        train(nn.DataParallel(model), batches(8), torch.optim.SGD(model.parameters(), lr=0.1))
    root = heard.script["roots"][0]
    assert (root["class"], root["inside"], root["role"]) == ("Net", ["DataParallel"], "model")
    assert {"head", "body.0"} <= set(heard.table("spans")["path"].to_list())
