"""Which of the models that a script calls is the one it is about, and what is said of the others."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch
from script_listening import Net, batches, train
from torch import nn

from detscope.record.script.closing import note_wrappers
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
    sharded = type("FSDPNet", (type("FSDPModule", (), {}), Net), {})()
    with listen() as run:
        train(sharded, batches(6), torch.optim.SGD(sharded.parameters(), lr=0.01))
    assert any(note.startswith("FSDP: parameters") for note in run.info["notes"])
    replicated = nn.DataParallel(Net())
    with listen() as run:
        train(replicated, batches(6), torch.optim.SGD(replicated.parameters(), lr=0.01))
    assert not any(
        "DataParallel" in note for note in run.info["notes"]
    )  # no device: the model itself is called
    replicated.device_ids = [0, 1]
    assert any(note.startswith("DataParallel: copies") for note in note_wrappers(replicated, ()))


class InParts(nn.Module):
    """Never called as a module: its methods call its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
        self.head = Head()

    def find_features(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).relu()

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.find_features(x))


class CallsItself(InParts):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.predict(x)


@pytest.mark.parametrize("kind", [InParts, CallsItself])
@pytest.mark.parametrize("loader", [True, False])
def test_a_module_whose_methods_call_its_parts_is_the_model(listen: Any, kind: Any, loader: bool) -> None:
    model = kind()
    call = model if kind is CallsItself else model.predict
    with listen() as heard:
        train(call, batches(8) if loader else list(batches(8)), torch.optim.SGD(model.parameters(), 0.01))
        with torch.no_grad():
            for batch in batches(2):
                call(batch)
    assert (heard.steps, heard.script["parts"]["evaluation"]["steps"]) == (8, 2)
    assert heard.info["model"]["name"] == kind.__name__
    assert heard.info["model"]["parameters"] == sum(one.numel() for one in model.parameters())
    modules = heard.table("spans").filter(pl.col("kind") == "module")["path"]
    assert {"body", "body.0", "head", "head.out"} <= set(modules)
    assert not any(path.startswith("[") for path in modules)
    method = "__call__" if kind is CallsItself else "predict"
    notes = " ".join(heard.info["notes"])
    assert f"{kind.__name__}.{method} was called directly" in notes


def test_a_wrapper_of_one_model_is_not_the_model(listen: Any) -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.teacher = Big(), Small().eval()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.teacher(batch)
            return self.net(batch)

    model = Trained()
    with listen() as heard:
        train(model.training_step, batches(6), torch.optim.SGD(model.parameters(), lr=0.01))
    assert heard.info["model"]["name"] == "Big"
    assert not any("called directly" in note for note in heard.info["notes"])


class Backend(nn.Module):
    """As predictors hold their network: not as a part, so that there is nothing to train in it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.held = [net.eval()]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.held[0](batch)


class Rarely(nn.Module):
    """Gives images in one call of five."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return batch.mean() if self.calls % 5 else batch


def test_what_trains_nothing_costs_no_more_with_every_call(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    plain = RootModel.find_holder
    monkeypatch.setattr(
        RootModel, "find_holder", lambda root, frame: (looked.append(root.label), plain(root, frame))[1]
    )
    backend, rarely = Backend(nn.Conv2d(3, 3, 1)), Rarely()
    with listen() as heard, torch.inference_mode():
        for _ in range(100):
            images = torch.rand(2, 3, 8, 8)
            backend(images)
            rarely(images)
    assert heard.script["parts"]["evaluation"]["steps"] == 100
    for label in ("Backend", "Conv2d", "Rarely"):
        assert looked.count(label) == 8, "who called it is looked at in calls 1, 2, 3, 5, 9, 17, 33 and 65"
    transforms = {root.label: root.may_transform for root in heard.tracker.roots.all if not root.has_weights}
    assert transforms == {"Backend": False, "Rarely": True}


def test_models_that_nobody_holds_together_are_said_to_stand_beside_each_other(listen: Any) -> None:
    body, head = nn.Linear(8, 64), nn.Linear(64, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    with listen() as heard:
        train(lambda batch: head(body(batch).relu()), batches(6), optimizer)
    assert any("no module that holds them all" in note for note in heard.info["notes"])


def test_reading_a_weight_that_is_computed_calls_no_model(listen: Any) -> None:
    model = Net()
    nn.utils.parametrizations.weight_norm(model.head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with listen() as heard:
        for batch in batches(6):
            train(model, [batch], optimizer)
            with torch.no_grad():
                for _ in range(3):
                    model.head.weight.norm()
    parts = heard.script["parts"]
    assert (parts["training"]["steps"], parts["evaluation"]["steps"]) == (6, 0)
    assert [root["class"] for root in heard.script["roots"]] == ["Net"]


class Folded(nn.Module):
    """Its weights are buffers, as deployed models have them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(outputs, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


class Scaled(nn.Module):
    """A transform: what it keeps is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.mean


def make_frozen() -> nn.Module:
    return torch.jit.freeze(torch.jit.script(Net().eval()))


def make_quantised() -> nn.Module:
    from torch.ao import quantization

    return quantization.quantize_dynamic(Net().eval(), {nn.Linear})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Sequential(Folded(8, 64), nn.ReLU(), Folded(64, 2)), "Sequential"),
        (make_frozen, "Net"),
        (make_quantised, "Net"),
    ],
)
def test_a_model_for_inference_whose_weights_are_no_parameters_is_a_model(
    listen: Any, make: Any, name: str
) -> None:
    model, transform = make(), Scaled()
    assert not list(model.parameters())
    with listen() as heard, torch.inference_mode():
        for _ in range(8):
            model(transform(torch.ones(4, 8)))
    assert heard.script["parts"]["evaluation"]["steps"] == 8
    assert heard.info["model"]["name"] == name
