"""What a script itself tells of errors, warnings and threads while it is recorded: the same as without us."""

from __future__ import annotations

import copy
import enum
import os
import threading
import traceback
import typing
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from polars.exceptions import PanicException
from script_listening import Net, batches, train
from torch import nn
from torch.utils.data import DataLoader

import detscope
from detscope.record.foreign import UnlistedThread
from detscope.sessions.run.script import own_imports

OURS = str(Path(detscope.__file__).parent)


class Careful(Net):
    """Tries a part of itself, and keeps what it told of its failure."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.body(x[:, :3])
        except RuntimeError:
            self.told.append(traceback.format_exc())
        return super().forward(x)


class Broken(list[torch.Tensor]):
    def __getitem__(self, index: Any) -> Any:
        raise KeyError(index)


def step_twice(model: nn.Module) -> None:
    loss = model(torch.ones(2, 8)).sum()
    loss.backward()
    loss.backward()


FAILURES: dict[str, Callable[[nn.Module], object]] = {
    "a call of the model": lambda model: model(torch.ones(2, 5)),
    "a call with something that is no tensor": lambda model: model("text"),
    "backward": step_twice,
    "a data set": lambda _: next(iter(DataLoader(Broken([torch.ones(1)]), batch_size=1))),
    "a worker": lambda _: next(iter(DataLoader(Broken([torch.ones(1)]), batch_size=1, num_workers=1))),
    "clipping": lambda _: nn.utils.clip_grad_norm_(["no tensor"], 1.0),  # type: ignore[list-item]
    "an optimizer": lambda _: torch.optim.SGD([], lr=0.1),
}


def tell_failures(model: nn.Module) -> list[str]:
    told = []
    for fail in FAILURES.values():
        try:
            fail(model)
        except Exception:
            told.append(traceback.format_exc())
    return told


def test_errors_that_a_script_catches_and_tells_have_no_frames_of_ours(listen: Any) -> None:
    torch.manual_seed(0)
    model = Careful()
    plain = tell_failures(model)
    assert len(plain) == len(FAILURES)
    in_forward = model.told[0]
    model.told.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        early = tell_failures(model)  # no model is known yet
        train(model, batches(5), optimizer)
        late = tell_failures(model)
    assert heard.steps == 5
    for told in (early, late):
        assert [OURS in text for text in told] == [False] * len(FAILURES)
        assert [text.count("\n") for text in told] == [text.count("\n") for text in plain]
    assert len(model.told) > 5
    assert {text.count("\n") for text in model.told} == {in_forward.count("\n")}


def warn_callers() -> None:
    for level in range(2, 7):
        warnings.warn(f"caller {level}", stacklevel=level)


class WarningData(list[torch.Tensor]):
    def __getitem__(self, index: Any) -> Any:
        warn_callers()
        return super().__getitem__(index)


class WarningNet(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warn_callers()
        return super().forward(x)


class WarningLoss(nn.Module):
    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        warn_callers()
        return nn.functional.mse_loss(found, wanted)  # warns of its caller that sizes differ


class WarningEMA:
    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)

    def update(self) -> None:
        warn_callers()


def train_with_warnings() -> Counter[tuple[str, int, str]]:
    """Which warnings at which lines, and how many of each."""
    model, criterion = WarningNet(), WarningLoss()
    optimizer, average = torch.optim.SGD(model.parameters(), lr=0.1), WarningEMA(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(2):
            for batch in DataLoader(WarningData(torch.randn(12, 8)), batch_size=2):
                optimizer.zero_grad()
                criterion(model(batch), torch.zeros(2)).backward()
                optimizer.step()
                average.update()
            schedule.step(epoch)  # warns of its caller
    return Counter((one.filename, one.lineno, str(one.message)) for one in caught)


@pytest.mark.parametrize("options", [{}, {"level": "phases"}, {"level": "ops", "memory": True}], ids=str)
def test_warnings_that_name_a_caller_name_the_same_one_as_without_us(listen: Any, options: Any) -> None:
    told = []
    for listening in (nullcontext(), listen(**options)):
        with listening:
            told.append(train_with_warnings())
    plain, recorded = told
    assert len(plain) > 12
    assert recorded == plain


def test_functions_of_python_that_our_classes_hold_stay_as_they_are(listen: Any) -> None:
    with listen():
        train(Net(), batches(3), torch.optim.SGD(Net().parameters(), lr=0.1))
    assert "importlib" in UnlistedThread.start.__code__.co_filename
    held = [*vars(enum).values(), *vars(enum.Enum).values(), *vars(typing).values()]
    functions = [one for one in held if isinstance(one, FunctionType)]
    assert len(functions) > 50
    assert {one.__code__.co_filename for one in functions if "importlib" in one.__code__.co_filename} == set()


def test_the_function_that_warns_is_python_s_own_as_torch_jit_knows_it_by_identity(listen: Any) -> None:
    before = warnings.warn
    with listen() as heard:
        model = Net()
        train(model, batches(3), torch.optim.SGD(model.parameters(), lr=0.1))
        assert warnings.warn is before
    assert heard.steps == 3


def test_whoever_waits_for_all_threads_there_are_does_not_wait_for_ours(listen: Any) -> None:
    before = threading.enumerate()
    with listen() as heard:
        train(Net(), batches(5), torch.optim.SGD(Net().parameters(), lr=0.1))
        telemetry = heard.tracker.recording._recorder.telemetry
        while len(telemetry.drain_samples()) < 1:
            pass
        assert threading.enumerate() == before


def test_a_thread_of_ours_is_waited_for_and_not_in_a_child_of_the_process() -> None:
    goes_on, done = threading.Event(), []

    def work() -> None:
        goes_on.wait()
        done.append(1)

    thread = UnlistedThread(work)
    thread.join()  # not begun
    thread.start()
    child = os.fork()
    if child == 0:
        thread.join()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    goes_on.set()
    thread.join()
    thread.join()
    assert done == [1]


def test_a_panic_of_a_library_that_we_use_does_not_end_the_script(listen: Any) -> None:
    """As polars does when the script has opened all files that it may."""
    model = Net()
    heard = listen()
    steps = 0

    def fail(*_: Any) -> None:
        raise PanicException("too many open files")

    with pytest.raises(PanicException, match="too many open files"), heard:  # raised by the test's `listen`
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(9):
            train(model, [batch], optimizer)
            steps += 1
            if steps == 5:
                heard.tracker.recording._recorder.tables.add_step = fail
    assert steps == 9
    assert heard.info["status"] == "partial"
    assert "too many open files" in heard.info["reason"]


@pytest.mark.parametrize("given", [None, "of the script's"])
def test_what_our_imports_put_into_the_environment_is_not_handed_on(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "_RJEM_MALLOC_CONF"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    before = dict(os.environ)
    with own_imports():
        os.environ[name] = "of polars, when it is imported"
    assert dict(os.environ) == before
