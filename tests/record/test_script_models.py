"""Which of the models that a script calls is the one it is about, and what is said of the others."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch
from script_listening import Net, batches, train
from torch import nn

from detscope.record.script.roots import RootModel, RootModels


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


class Detector(nn.Module):
    """Its constructor sends a dummy through its parts, as those do that compute their strides."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
        self.head = Head()
        if how == "forward":
            self.forward(torch.zeros(1, 8))
        elif how == "parts":
            with torch.no_grad():
                self.body(torch.zeros(1, 8))
        else:
            self.head(torch.zeros(1, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Small(Net):
    pass


class Big(Net):
    pass


@pytest.fixture
def planted_ms(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """How long calls of a class take, one after the other, the last one for ever: the clock is the test's."""
    planted: dict[str, list[float]] = {}
    plain = RootModel.add_call

    def add(self: RootModel, spent_ns: int, trains: bool) -> None:
        times = planted.get(self.label)
        if times:
            spent_ns = round(1e6 * (times.pop(0) if len(times) > 1 else times[0]))
        plain(self, spent_ns, trains)

    monkeypatch.setattr(RootModel, "add_call", add)
    return planted


def recorded_steps(heard: Any) -> pl.Series:
    whole = heard.table("steps").filter((pl.col("phase") == "step") & (pl.col("mode") == "recorded"))
    return whole["step"]


def recorded_paths(heard: Any) -> set[str]:
    spans = heard.table("spans")
    return set(spans.filter(pl.col("step").is_in(recorded_steps(heard).implode()))["path"].to_list())


def roles(heard: Any) -> dict[str, str]:
    return {root["class"]: root["role"] for root in heard.script["roots"]}


def test_the_model_of_an_evaluation_is_the_one_that_predicts_and_not_the_head_its_constructor_called(
    listen: Any, planted_ms: dict[str, list[float]]
) -> None:
    for how in ("head", "forward"):
        planted_ms |= {"Head": [300.0, 1.0], "Detector": [2.0]}  # what comes first takes long
        with listen() as heard, torch.no_grad():
            model = Detector(how).eval()
            for _ in range(16):
                model(torch.randn(4, 8))
        assert heard.info["model"]["name"] == "Detector"
        assert heard.info["model"]["parameters"] == sum(p.numel() for p in model.parameters())
        assert heard.info["stages"] == ["body", "body.0_linear", "body.2_linear", "head"]
        assert {"body.0", "head.out"} <= recorded_paths(heard)
        assert roles(heard) == {"Detector": "model"}
        assert not any("called directly" in note for note in heard.info["notes"])


def test_a_small_model_that_came_first_gives_way_to_the_one_that_does_the_work(
    listen: Any, planted_ms: dict[str, list[float]]
) -> None:
    planted_ms |= {"Small": [30.0, 2.0], "Big": [40.0, 20.0]}
    small, big = Small().eval(), Big().eval()
    with listen() as heard, torch.no_grad():
        for batch in batches(9):
            small(batch)
        for batch in batches(24):
            big(batch)
    assert heard.info["model"]["name"] == "Big"
    assert heard.script["parts"]["evaluation"]["steps"] == 33
    steps = recorded_steps(heard)
    assert steps.len() >= 5
    assert steps.min() >= 9, "steps of the small one are in no figure"  # type: ignore[operator]
    assert "[Small]" not in recorded_paths(heard)
    assert any("the figures are of the steps since Big" in note for note in heard.info["notes"])


def test_of_a_pipeline_the_model_that_takes_nearly_all_of_the_time_is_the_one(
    listen: Any, planted_ms: dict[str, list[float]]
) -> None:
    planted_ms |= {"Small": [500.0, 1.0], "Big": [9.0]}
    small, big = Small().eval(), Big().eval()
    with listen() as heard, torch.no_grad():
        small(torch.randn(4, 8))  # tried once, at length, before the loop
        for _ in range(16):
            x = torch.randn(4, 8)
            small(x)
            big(x)
    assert heard.info["model"]["name"] == "Big"
    assert roles(heard)["Small"] == "another evaluated model"
    assert {"head", "[Small]"} <= recorded_paths(heard)


def test_two_models_that_do_about_as_much_do_not_take_turns() -> None:
    roots, modules = RootModels(), [Small(), Big()]
    small, big = (roots.find_root(module) for module in modules)
    chosen = None
    for number in range(40):
        small.add_call(5_000_000, trains=False)
        big.add_call(5_000_000 if number % 2 else 6_000_000, trains=False)
        before, chosen = chosen, roots.choose_model(trained=False, so_far=chosen)
        assert chosen is before or number == 0
    for _ in range(60):
        big.add_call(5_000_000, trains=False)
    assert roots.choose_model(trained=False, so_far=small) is big


def test_a_backbone_that_the_constructor_called_is_no_teacher(listen: Any) -> None:
    for loader in (True, False):
        with listen() as heard:
            model = Detector("parts")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches(8) if loader else [torch.randn(4, 8) for _ in range(8)]:
                train(model, [batch], optimizer)
        assert heard.steps == 8
        assert roles(heard) == {"Detector": "model"}


def test_a_forward_that_was_called_in_the_constructor_alone_is_not_said_to_be_called_directly(
    listen: Any,
) -> None:
    for loader in (True, False):
        with listen() as heard:
            model = Detector("forward")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches(8) if loader else [torch.randn(4, 8) for _ in range(8)]:
                train(model, [batch], optimizer)
        assert not any("called directly" in note for note in heard.info["notes"])


def test_a_forward_that_is_called_directly_in_an_evaluation_is_said(listen: Any) -> None:
    model = Net().eval()
    with listen() as heard, torch.no_grad():
        for batch in batches(8):
            model.forward(batch)
    assert any("Net.forward was called directly" in note for note in heard.info["notes"])


def test_copies_on_several_devices_and_shards_are_said_to_be_what_they_are(listen):
    sharded = type("FSDPNet", (type("FSDPModule", (), {}), Net), {})
    for model, words in ((nn.DataParallel(Net()), "DataParallel: copies"), (sharded(), "FSDP: parameters")):
        with listen() as run:
            train(model, batches(6), torch.optim.SGD(model.parameters(), lr=0.01))
        assert any(note.startswith(words) for note in run.info["notes"])
