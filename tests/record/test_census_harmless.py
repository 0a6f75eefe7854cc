"""A script does the same whether its steps are counted or not: to the last bit, with the same objects."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torchvision.models import detection

from census_runs import count_kind
from detscope.record.recorder import Recorder
from transformers_detectors import make_batches as make_transformers_batches
from transformers_detectors import make_detector


def dispatch_depth() -> int:
    return torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()


def record(model: Any, batches: Any, step: Callable[[Any], Any], out: Path, census: bool) -> Recorder:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    options: dict[str, Any] = {"warmup_steps": 1, "census_steps": 2, "telemetry_hz": 0, "bare_every": 0}
    with Recorder(model, optimizer, out, census=census, **options) as recorder:
        for batch in recorder.steps(batches):
            optimizer.zero_grad()
            loss = step(batch)
            loss.backward()
            optimizer.step()
    return recorder


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())


class Counting(TorchDispatchMode):
    """A mode of the script's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    """One that changes what a function gives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if getattr(func, "__name__", "") == "relu" else made


class Named(torch.Tensor):
    """A subclass that keeps its class through every function."""


def plainly(model: Any, batch: Any) -> Any:
    return model(batch).square().mean()


def through_vmap(model: Any, batch: Any) -> Any:
    return torch.func.vmap(lambda image: image.square().sum())(batch).mean() + plainly(model, batch)


def under_modes(model: Any, batch: Any) -> Any:
    with Counting() as counting, Doubling():
        loss = model(batch).relu().mean()
    return loss * len(counting.seen)


def with_a_subclass(model: Any, batch: Any) -> Any:
    named = batch.as_subclass(Named)
    assert type(named + 1) is Named and type(named.cpu()) is Named
    return plainly(model, (named * 1).as_subclass(torch.Tensor))


def by_identity(model: Any, batch: Any) -> Any:
    """Copies only what is shared: `x.cpu()` is x on a CPU."""
    own, moved, kept = batch.cpu(), batch.to("cpu"), batch.to(batch.device)
    batch.told = "by an attribute"
    values = own.clone() if own is batch and moved is batch and kept is batch else own
    assert batch.cpu().told == "by an attribute"
    leaf = torch.ones(1, requires_grad=True).to(batch.device)
    (leaf * values.add_(1).sum()).sum().backward()
    return plainly(model, batch) * leaf.grad


def in_bfloat16(model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return plainly(model, batch)


def checkpointed(model: Any, batch: Any) -> Any:
    return checkpoint(model, batch, use_reentrant=False).square().mean()


def copied_and_saved(model: Any, batch: Any) -> Any:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    file.seek(0)
    twin.load_state_dict(torch.load(file))
    with torch.inference_mode():
        beside = twin(batch).sum()
    return plainly(model, batch) + float(beside)


def with_random_numbers(model: Any, batch: Any) -> Any:
    noise = torch.rand(3, device=batch.device).sum() + torch.randperm(5)[0] + torch.tensor([1.0]).to(batch)
    return plainly(model, batch) + noise.sum() * torch.randint(0, 9, (1,)).item()


STEPS = (
    plainly, through_vmap, under_modes, with_a_subclass, by_identity, in_bfloat16, checkpointed,
    copied_and_saved, with_random_numbers,
)  # fmt: skip


def compute(
    step: Callable[..., Any], out: Path, census: bool
) -> tuple[list[float], list[bytes], torch.Tensor]:
    torch.manual_seed(0)
    model = small_net()
    batches = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    losses: list[float] = []

    def remember(batch: Any) -> Any:
        loss = step(model, batch)
        losses.append(loss.detach().double().sum().item())
        return loss.sum()

    recorder = record(model, batches, remember, out, census)
    assert recorder.notes == []
    return losses, [one.detach().numpy().tobytes() for one in model.state_dict().values()], torch.rand(3)


@pytest.mark.parametrize("step", STEPS)
def test_losses_weights_and_random_numbers_are_the_same(step, tmp_path):
    plain, counted = compute(step, tmp_path / "a", False), compute(step, tmp_path / "b", True)
    assert counted[0] == plain[0]
    assert counted[1] == plain[1]
    assert torch.equal(counted[2], plain[2])
    assert dispatch_depth() == 0


def train_detector(name: str, out: Path, census: bool) -> list[bytes]:
    torch.manual_seed(0)
    if name == "d_fine":
        model = make_detector(name)
        record(model, make_transformers_batches(3), lambda batch: model(**batch).loss, out, census)
    else:
        model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=4, min_size=96, max_size=128
        )
        boxes = torch.tensor([[8.0, 8.0, 60.0, 60.0]])
        target = {"boxes": boxes, "labels": torch.tensor([1])}
        batches = [([torch.rand(3, 96, 128)] * 2, [target] * 2) for _ in range(3)]
        record(model, batches, lambda batch: sum(model(*batch).values()), out, census)
    return [one.detach().numpy().tobytes() for one in model.state_dict().values()]


@pytest.mark.parametrize("name", ["fasterrcnn", "d_fine"])
def test_a_detector_learns_the_same(name, tmp_path):
    assert train_detector(name, tmp_path / "a", False) == train_detector(name, tmp_path / "b", True)


def test_a_mode_that_lies_across_the_border_of_a_step_stays_where_it_is(tmp_path):
    model, mode = small_net(), Counting()

    def step(batch: Any) -> Any:
        if len(entered) in (1, 3):
            mode.__enter__()
        elif len(entered) in (2, 4):
            mode.__exit__(None, None, None)
        entered.append(1)
        return plainly(model, batch)

    entered: list[int] = []
    with Counting() as outside:
        record(model, [torch.randn(2, 3, 8, 8) for _ in range(5)], step, tmp_path, True)
        assert torch._C._len_torch_dispatch_stack() == 1
    assert len(outside.seen) > len(mode.seen) > 0
    assert dispatch_depth() == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_raises_leaves_no_mode_behind(error, tmp_path):
    model, steps = small_net(), []

    def step(batch: Any) -> Any:
        steps.append(1)
        if len(steps) == 2:  # the first that is counted
            raise error("of the script")
        return plainly(model, batch)

    with pytest.raises(error, match="of the script"):
        record(model, [torch.randn(2, 3, 8, 8) for _ in range(3)], step, tmp_path, True)
    assert dispatch_depth() == 0


def test_another_thread_is_not_counted(tmp_path):
    model, given = small_net(), torch.ones(3)

    def step(batch: Any) -> Any:
        other = threading.Thread(target=lambda: [float(given.sum()) for _ in range(5)])
        other.start()
        other.join()
        return plainly(model, batch)

    recorder = record(model, [torch.randn(2, 3, 8, 8) for _ in range(3)], step, tmp_path, True)
    assert count_kind(pl.read_parquet(recorder.run / "census.parquet"), "read") == 0


def test_counters_of_an_optimizer_are_the_host_s(tmp_path):
    model = small_net()
    batches = [torch.randn(2, 3, 8, 8) for _ in range(3)]
    recorder = record(model, batches, lambda batch: plainly(model, batch), tmp_path, True)
    table = pl.read_parquet(recorder.run / "census.parquet")
    assert not set(table["kind"]) & {"read", "size", "copy", "feed", "index"}
    assert count_kind(table, "launch") > 20


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_are_not_counted(workers, tmp_path):
    model = small_net()
    loader = DataLoader([torch.randn(3, 8, 8) for _ in range(8)], batch_size=2, num_workers=workers)
    recorder = record(model, loader, lambda batch: plainly(model, batch.to(batch.device)), tmp_path, True)
    table = pl.read_parquet(recorder.run / "census.parquet")
    feeds = table.filter(pl.col("kind") == "feed")
    assert feeds["count"].to_list() == [1, 1]  # one batch in each of two steps


def test_a_compiled_model_is_not_counted_and_says_so(tmp_path):
    model = small_net()
    quick = torch.compile(model, backend="eager")
    batches = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    recorder = record(model, batches, lambda batch: plainly(quick, batch), tmp_path, True)
    assert any("there is no census" in note for note in recorder.notes)
    assert not (recorder.run / "census.parquet").exists()


@pytest.mark.parametrize("broken", ["is_on_host", "take_copy", "put_on_host", "follow_operator"])
def test_a_fault_of_ours_never_reaches_the_script(broken, tmp_path, monkeypatch):
    def fail(*_given: object) -> None:
        raise KeyError("ours")

    def step(batch: Any) -> Any:
        noise = torch.rand(())  # drawn once, whatever becomes of our looking
        drawn.append(noise.cpu().item())
        with pytest.raises(RuntimeError):
            torch.ones(2) + torch.ones(3)
        return plainly(model, batch) + noise

    drawn: list[float] = []
    model, batches = small_net(), [torch.randn(2, 3, 8, 8) for _ in range(4)]
    monkeypatch.setattr("detscope.record.census.places.TensorPlaces." + broken, fail)
    torch.manual_seed(0)
    recorder = record(model, batches, step, tmp_path / "counted", True)
    counted, drawn = drawn, []
    monkeypatch.undo()
    torch.manual_seed(0)
    record(model, batches, step, tmp_path / "plain", False)
    assert counted == drawn
    assert any("the census is not whole: KeyError" in note for note in recorder.notes)
