"""Less usual ways to train: steps are counted right, and what cannot be told is said."""

from __future__ import annotations

import queue
import threading
from typing import Any

import polars as pl
import pytest
import torch
from script_listening import Net, batches, train
from torch import nn


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.01)


def go(model: Any, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def said(heard: Any, words: str) -> bool:
    return any(words in note for note in heard.info["notes"])


def test_the_loss_of_every_step_is_what_it_went_backward_from(listen: Any) -> None:
    model = Net()
    optimizer = sgd(model)
    with listen() as heard:
        expected = [go(model, batch, optimizer) for batch in batches(9)]
    losses = heard.table("losses")
    assert losses.filter(pl.col("name") == "loss")["value"].to_list() == expected
    assert set(losses.filter(pl.col("name") == "learning_rate")["value"]) == {0.01}


def test_parts_come_from_a_detector_s_dict_and_the_scaler_s_factor_is_taken_out(
    listen: Any,
) -> None:
    class Detector(Net):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            found = super().forward(x)
            return {"loss_box": found.square().mean(), "loss_class": found.abs().mean()}

    model = Detector()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    expected: list[list[float]] = []
    with listen() as heard:
        for number, batch in enumerate(batches(16)):
            losses = model(batch)
            scaler.scale(sum(losses.values()) / 2).backward()
            expected.append([value.item() for value in losses.values()])
            if number % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    table = heard.table("losses").sort("step", maintain_order=True)
    by_name = {str(name): rows["value"].to_list() for (name,), rows in table.group_by("name")}
    pairs = list(zip(expected[::2], expected[1::2], strict=True))
    assert by_name["loss_box"] == pytest.approx([(a[0] + b[0]) / 2 for a, b in pairs])
    assert by_name["loss_class"] == pytest.approx([(a[1] + b[1]) / 2 for a, b in pairs])
    assert by_name["loss"] == pytest.approx([(sum(a) + sum(b)) / 2 for a, b in pairs])


def test_two_models_with_an_optimizer_each_make_one_step_and_have_their_own_losses(
    listen: Any, planted_ms: dict[str, list[float]]
) -> None:
    planted_ms |= {"Net": [3.0], "Linear": [1.0]}
    critic, maker = Net(), nn.Linear(8, 8)
    first, second = sgd(critic), sgd(maker)
    with listen() as heard:
        for _ in range(9):
            real, noise = torch.randn(4, 8), torch.randn(4, 8)
            first.zero_grad()
            (critic(real).mean() - critic(maker(noise).detach()).mean()).backward()
            first.step()
            second.zero_grad()
            (-critic(maker(noise)).mean()).backward()
            second.step()
    assert heard.steps == 9
    names = set(heard.table("losses")["name"])
    assert names == {"loss", "before SGD", "before SGD 2", "learning_rate"}
    roles = {root["class"]: root["role"] for root in heard.script["roots"]}
    assert roles == {"Net": "model", "Linear": "another trained model"}


def test_a_loss_that_is_not_finite_is_said_once_and_left_out(listen: Any) -> None:
    model = Net()
    optimizer = sgd(model)
    with listen() as heard:
        for batch in batches(6):
            optimizer.zero_grad()
            (model(batch).mean() * float("nan")).backward()
            optimizer.step()
    assert [note for note in heard.info["notes"] if "not finite" in note] == [
        "a loss was not finite, first at step 0: loss"
    ]
    assert heard.table("losses").filter(pl.col("name") == "loss").height == 0


def test_weights_that_no_optimizer_of_torch_s_updates(listen: Any, monkeypatch: Any) -> None:
    from detscope.record.script import hooks

    monkeypatch.setattr(hooks, "_list_optimizers", list)  # those of other tests
    model = Net()
    with listen() as heard:
        for batch in batches(9):
            model(batch).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    assert heard.steps == 9
    assert said(heard, "by no optimizer of torch's")


def test_weights_that_are_updated_inside_of_backward(listen: Any) -> None:
    model = Net()
    own = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        own[parameter].step()  # type: ignore[index]
        own[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with listen() as heard:
        for batch in batches(9):
            model(batch).square().mean().backward()
    assert heard.steps == 9
    assert said(heard, "inside of backward")


def test_steps_that_end_with_the_script_count_also_when_they_run_bare(listen: Any) -> None:
    model = Net()
    optimizer = sgd(model)
    for count in (7, 8, 9, 10, 11):  # one of them ends with a bare step
        with listen() as heard:
            for _ in range(count):
                go(model, torch.randn(4, 8), optimizer)
        assert heard.steps == count


def test_batches_from_prefetchers_threads_and_next_are_steps(listen: Any) -> None:
    model = Net()
    optimizer = sgd(model)

    def ahead() -> Any:
        iterator = iter(batches(9))
        following = next(iterator)
        while following is not None:
            current, following = following, next(iterator, None)
            yield current

    with listen() as heard:
        for batch in ahead():
            go(model, batch, optimizer)
    assert heard.steps == 9
    with listen() as heard:
        iterator = iter(batches(12))
        for _ in range(9):
            go(model, next(iterator), optimizer)
    assert heard.steps == 9
    waiting: queue.Queue[Any] = queue.Queue(2)
    with listen() as heard:
        feeder = threading.Thread(target=lambda: [waiting.put(batch) for batch in [*batches(9), None]])
        feeder.start()
        while (batch := waiting.get()) is not None:
            go(model, batch, optimizer)
        feeder.join()
    assert heard.steps == 9
    assert said(heard, "fetched in another thread")
    assert not said(heard, "more than one thread")


def test_a_forward_that_is_called_directly_is_said(listen: Any) -> None:
    model = Net()
    optimizer = sgd(model)
    with listen() as heard:
        for batch in batches(8):
            go(model.forward, batch, optimizer)
    assert heard.steps == 8
    assert said(heard, "Net.forward was called directly")


def test_a_model_that_is_built_anew_or_changed_is_said(listen: Any) -> None:
    model, later = Net(), Net(32)
    with listen() as heard:
        train(model, batches(7), sgd(model))
        train(later, batches(5), sgd(later))
    assert heard.steps == 12
    assert said(heard, "was called in 7 of 12 training steps")
    with listen() as heard:
        train(model, batches(6), sgd(model))
        model.head = nn.Linear(64, 1)
        train(model, batches(6), sgd(model))
    assert said(heard, "added or replaced")


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # 2.10
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize("whole", [True, False])
def test_torchscript_is_timed_by_phases_and_said_to_be_closed(listen: Any, whole: bool) -> None:
    model: Any = Net()
    if whole:
        model = torch.jit.script(model)
    else:
        model.body = torch.jit.script(model.body)
    with listen(level="ops", memory=True) as heard:
        train(model, batches(8), sgd(model))
    assert (heard.steps, heard.info["level"]) == (8, "phases")
    assert said(heard, "TorchScript")


def test_a_script_with_a_profiler_of_its_own_keeps_it(listen: Any) -> None:
    model = Net()
    optimizer = sgd(model)
    with listen(level="ops") as heard:
        # torch 2.10 warns of a session that does not keep the events of earlier cycles
        own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)
        with own as profiler:
            for batch in batches(10):
                go(model, batch, optimizer)
    assert heard.steps == 10
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["aten::addmm"] == 30
    assert said(heard, "profiler of its own")
    assert heard.info["status"] == "ok"
