"""Built tiny models and ways to run them, for the tests of the zoo."""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from zoo_samples import make_images, make_targets

from detscope import zoo
from detscope.zoo import BuildOptions, BuiltModel


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Images this small gain nothing from threads, which on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def _built(name: str) -> BuiltModel:
    return zoo.build_model(name, BuildOptions(num_classes=3))


@pytest.fixture
def tiny() -> Callable[[str], BuiltModel]:
    """A tiny model of 3 classes by family, built once for all tests."""
    return lambda family: _built(f"tiny_{family}")


@pytest.fixture
def train_step() -> Callable[..., dict[str, torch.Tensor]]:
    def step(module: torch.nn.Module, batch: int = 2) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return module.train()(make_images(batch), make_targets(batch))

    return step


@pytest.fixture
def detect() -> Callable[..., list[dict[str, torch.Tensor]]]:
    def run(module: torch.nn.Module, batch: int = 2) -> list[dict[str, torch.Tensor]]:
        with torch.no_grad():
            return module.eval()(make_images(batch))

    return run


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[Any]]]:
    """Outputs seen at each target while something runs: what a recorder does, in small."""

    def run(module: torch.nn.Module, targets: Iterable[str], work: Callable[[], Any]) -> dict[str, list[Any]]:
        seen: dict[str, list[Any]] = defaultdict(list)
        handles = []

        def wrapped(function: Callable[..., Any], target: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                output = function(*args, **kwargs)
                seen[target].append(output)
                return output

            return call

        with monkeypatch.context() as patch:
            for target in sorted(set(targets)):
                owner_path, _, method = target.removesuffix("()").rpartition(".")
                if ":" in target:
                    library, _, name = target.partition(":")
                    owner = importlib.import_module(library)
                    patch.setattr(owner, name, wrapped(getattr(owner, name), target))
                elif target.endswith("()"):
                    owner = module.get_submodule(owner_path)
                    patch.setitem(owner.__dict__, method, wrapped(getattr(owner, method), target))
                else:
                    handles.append(
                        module.get_submodule(target).register_forward_hook(
                            lambda _m, _i, output, target=target: seen[target].append(output)
                        )
                    )
            work()
        for handle in handles:
            handle.remove()
        return seen

    return run
