"""Classes and functions of strangers: what they hold, keep and are called stays theirs while recorded."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import types
from collections import Counter
from typing import Any, ClassVar

import cloudpickle
import pytest
import torch
from script_listening import Net, batches
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from detscope.record.model.calls import FunctionStandIn
from detscope.record.script import hooks

STEPS = 8


class Matcher:
    def __call__(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.argsort(0)


class Holding(Net):
    """Whose losses and matchers are attributes of the class, and no methods."""

    criterion = nn.MSELoss()
    loss_class = nn.L1Loss
    box_loss = functools.partial(functional.smooth_l1_loss, beta=0.5)
    match = Matcher()

    class LossWeights:
        box = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, zero = super().forward(x), torch.zeros(len(x), 1)
        self.match(out.detach())
        loss = self.criterion(out, zero) + self.loss_class()(out, zero)
        return loss + self.LossWeights.box * self.box_loss(out, zero)


def counted(function: Any) -> Any:
    @functools.wraps(function)
    def count(*args: Any) -> Any:
        count.calls += 1  # type: ignore[attr-defined]
        return function(*args)

    count.calls = 0  # type: ignore[attr-defined]
    return count


class Counting(Net):
    """Whose methods keep counts and caches as attributes."""

    seen: list[Any]

    @counted
    def compute_loss(self, out: torch.Tensor) -> torch.Tensor:
        return out.square().mean()

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def make_anchors(self, count: int) -> torch.Tensor:
        return torch.arange(float(count))

    @classmethod
    def decode(cls, out: torch.Tensor) -> tuple[torch.Tensor, str]:
        return out * 2, cls.__name__

    @staticmethod
    def match_boxes(out: torch.Tensor) -> torch.Tensor:
        return out.abs()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, name = self.decode(super().forward(x))
        loss = self.compute_loss(self.match_boxes(out)) + self.make_anchors(3).sum() * out.mean()
        counts = self.make_anchors.cache_info().hits, self.compute_loss.calls, name
        self.seen = [*counts, inspect.signature(self.compute_loss), self.compute_loss.__func__.__code__]
        return loss


def take_steps(model: nn.Module, count: int = STEPS) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in range(count):
        loss = model(torch.randn(4, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def stages_of(heard: Any) -> set[str]:
    spans = heard.table("spans")
    return set(spans.filter(spans["kind"] == "stage")["path"])


def make(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def test_what_a_class_holds_that_can_be_called_stays_what_it_is(listen: Any) -> None:
    plain = take_steps(make(Holding))
    with listen() as heard:
        assert take_steps(make(Holding)) == plain
        assert Holding.criterion.reduction == "mean"
        assert Holding.box_loss.keywords == {"beta": 0.5}
    assert heard.steps == STEPS


def test_methods_keep_their_counters_caches_and_signatures_while_they_are_heard(listen: Any) -> None:
    model = make(Counting)
    plain = take_steps(model)
    seen, code = model.seen, vars(Counting)["compute_loss"].__code__
    vars(Counting)["make_anchors"].cache_clear()
    vars(Counting)["compute_loss"].calls = 0
    with listen() as heard:
        model = make(Counting)
        assert take_steps(model) == plain
    assert model.seen == seen
    assert seen[-1] is code
    assert {"loss", "decode"} <= stages_of(heard)


def test_a_function_that_counts_its_own_calls_counts_them_all(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
def box_loss(out):
    box_loss.calls += 1
    return out.square().mean()
box_loss.calls = 0
class Losing(Net):
    def forward(self, x):
        return box_loss(super().forward(x))
"""
    file = types.ModuleType("their_file")
    vars(file).update(Net=Net)
    monkeypatch.setitem(sys.modules, "their_file", file)
    exec(source, vars(file))
    with listen():
        take_steps(file.Losing())
    assert file.box_loss.calls == STEPS


def test_a_stand_in_is_the_function_to_whoever_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = FunctionStandIn(counted, lambda *args: ("heard", *args))
    assert stand_in(1) == ("heard", 1)
    assert isinstance(stand_in, types.FunctionType)
    assert inspect.signature(stand_in) == inspect.signature(counted)
    assert (stand_in == counted, counted == stand_in, {counted: 1}[stand_in]) == (True, True, 1)
    monkeypatch.setattr(sys.modules[__name__], "counted", stand_in)
    assert b"detscope" not in pickle.dumps(stand_in)
    assert pickle.loads(pickle.dumps(stand_in)) is stand_in


class Sent(Net):
    def compute_loss(self, out: torch.Tensor) -> torch.Tensor:
        return out.square().mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute_loss(super().forward(x))


def test_a_class_that_is_sent_by_value_names_nothing_of_ours(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sent, "__module__", "__main__")  # whose classes are sent by value
    model = Sent()
    with listen():
        take_steps(model, 3)
        sent = cloudpickle.dumps(Sent)
        take_steps(model, 3)
    assert b"detscope" not in sent
    assert type(vars(cloudpickle.loads(sent))["compute_loss"]) is types.FunctionType


class HalfLazy(nn.Module):
    """A head that this mode never calls has no parameters yet."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(8, 16), nn.LazyLinear(1), nn.LazyLinear(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).square().mean()


def test_parameters_that_are_not_there_yet_are_no_fault(listen: Any) -> None:
    model = HalfLazy()
    with listen(memory=True) as heard:
        optimizer = None
        for _ in range(STEPS):
            loss = model(torch.ones(4, 8))
            optimizer = optimizer or torch.optim.SGD(
                [*model.body.parameters(), *model.head.parameters()], 0.1
            )
            loss.backward()
            optimizer.step()
    assert (heard.steps, heard.info["model"]["parameters"]) == (STEPS, 8 * 16 + 16 + 16 + 1)


class OddlyNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.heads = nn.ModuleDict(
            {name: nn.Linear(8, 1) for name in ("person:car", "sys:exit", "loss()", "a b/<c>")}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(head(self.body(x)).square().mean() for head in self.heads.values())


def test_modules_may_be_called_anything(listen: Any) -> None:
    with listen() as heard:
        take_steps(OddlyNamed())
    assert heard.steps == STEPS
    names = ("person:car", "sys:exit", "loss()", "a b/<c>")
    assert {f"heads.{name}" for name in names} <= stages_of(heard)


class Noted(torch.Tensor):
    """Notes whatever is done to it and to what is made of it."""

    seen: ClassVar[Counter[str]] = Counter()

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen[getattr(function, "__name__", "") + getattr(function, "__qualname__", "")] += 1
        return super().__torch_function__(function, kinds, args, kwargs)


def test_a_tensor_class_of_the_script_s_sees_nothing_that_we_do(listen: Any) -> None:
    def go(model: nn.Module) -> Counter[str]:
        Noted.seen = Counter()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(4, 8).as_subclass(Noted)).square().mean().backward()
            optimizer.step()
        return Noted.seen

    plain = go(Net())
    with listen(memory=True):
        assert go(Net()) == plain


class NotedCalls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


class NotedOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [NotedCalls, NotedOperators])
def test_a_mode_of_the_script_s_sees_nothing_that_we_do(listen: Any, kind: Any) -> None:
    with kind() as plain:
        take_steps(Sent())
    with listen(memory=True), kind() as noted:
        take_steps(Sent())
    assert noted.seen == plain.seen


def test_a_model_under_transforms_of_functions_runs_in_memory_steps_too(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_list_optimizers", list)  # those of other tests
    model = Net()
    weights = {name: one.detach() for name, one in model.named_parameters()}

    def loss_of(given: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, given, (x,)).square().mean()

    with listen(memory=True) as heard:
        for batch in list(batches(12)):  # no loader: the border of a step is where the model is called
            torch.func.vmap(torch.func.grad(loss_of), (None, 0))(weights, batch[:, None])
    assert (heard.info["status"], heard.steps) == ("ok", 12)


def test_a_model_on_the_meta_device_can_be_tried_out(listen: Any) -> None:
    with torch.device("meta"):
        model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with listen(memory=True) as heard:
        for _ in range(STEPS):
            model(torch.empty(4, 8, device="meta")).mean().backward()
            optimizer.step()
    assert heard.steps == STEPS
