"""One trial, inside its own process: build the network, warm up, measure until it is known well enough."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detscope.sweep.limits import (
    forget_resident_peak,
    limit_memory,
    resident_bytes,
    resident_peak_bytes,
)
from detscope.sweep.plan_settings import Measure
from detscope.sweep.samples import (
    UNSTABLE_SPREAD,
    check_durations,
    enough,
    figures,
    middle_of,
    spread_of,
    warmup_length,
)

if TYPE_CHECKING:
    from detscope.zoo.networks.contract import Batch, Network

_RATE = 1e-6  # weights stay as they are: every step is the same work


@dataclass
class Times:
    """Seconds of every measured step and of its parts."""

    step: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)

    def without(self, first: int) -> Times:
        """The same without the first so many steps."""
        return Times(self.step[first:], self.forward[first:], self.backward[first:])


def measure_trial(request: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one trial, as columns of the store."""
    values, rules = request["values"], Measure(**request["measure"])
    new_peak = forget_resident_peak()
    before = resident_bytes()
    limit_memory(request.get("memory_bytes"))
    try:
        return _measured(request, values, rules, before, new_peak)
    finally:
        limit_memory(None)


def _measured(
    request: Mapping[str, Any], values: Mapping[str, Any], rules: Measure, before: int | None, new_peak: bool
) -> dict[str, Any]:
    import torch

    from detscope.machine.devices import resolve_device

    device = resolve_device(request["device"])
    seed = int(values["seed"]) + int(request["repetition"])
    _prepare(torch, values, seed)
    network = _network(request["network"], values, seed).to(device)
    if values["channels_last"]:
        network.module.to(memory_format=torch.channels_last)
    training = values["stage"] == "training"
    optimizer = _optimizer(torch, network, values["optimizer"]) if training else None
    step = _Step(torch, network, optimizer, device, values["precision"])
    with _batches(network, values, seed, device) as batches:
        found: dict[str, Any] = {
            "parameters": network.parameters,
            "network_kind": network.kind,
            "image_pixels": network.image_size,
            "torch_threads": torch.get_num_threads(),
            "images": values["batch_size"],
        }
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(max(1, rules.warmup_steps)):
            step.run(next(batches), Times())
        if "latency" in values["variables"]:
            found |= _latency(step, batches, rules, int(values["batch_size"]))
        if "memory" in values["variables"]:
            found |= {
                "process_bytes": resident_peak_bytes() if new_peak else None,
                "process_base_bytes": before,
            }
            found |= _memory(torch, step, next(batches), device)
    return found


def _prepare(torch: Any, values: Mapping[str, Any], seed: int) -> None:
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if values["threads"]:
        torch.set_num_threads(values["threads"])


def _network(name: str, values: Mapping[str, Any], seed: int) -> Network:
    from detscope.zoo.networks import load_network

    return load_network(name, image_size=values["image_size"], seed=seed)


def _optimizer(torch: Any, network: Network, name: str) -> Any:
    trained = [parameter for parameter in network.module.parameters() if parameter.requires_grad]
    more = {"momentum": 0.9, "weight_decay": 5e-4} if name == "sgd" else {}
    kind = torch.optim.SGD if name == "sgd" else torch.optim.AdamW
    return kind(trained, lr=_RATE, **more)


class _Step:
    """One step of the stage that is measured."""

    def __init__(self, torch: Any, network: Network, optimizer: Any, device: str, precision: str) -> None:
        self._torch, self._network, self.optimizer, self._device = torch, network, optimizer, device
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self._precision: Callable[[], Any] = contextlib.nullcontext
        if kind is not None:
            self._precision = lambda: torch.autocast(device.split(":")[0], kind)
        network.module.train(optimizer is not None)

    @property
    def network(self) -> Network:
        """What is measured."""
        return self._network

    def run(self, batch: Batch, times: Times, began: float | None = None) -> None:
        """Run it and note how long it and its parts took; `began` is when its batch was asked for."""
        start = self._now()
        if self.optimizer is None:
            with self._precision():
                self._network.infer(batch.inputs)
            done = self._now()
            times.forward.append(done - start)
        else:
            with self._precision():
                loss = self._network.loss(batch)
            forward = self._now()
            loss.backward()
            backward = self._now()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            done = self._now()
            times.forward.append(forward - start)
            times.backward.append(backward - forward)
        times.step.append(done - (start if began is None else began))

    def _now(self) -> float:
        if self._device.startswith("cuda"):
            self._torch.cuda.synchronize(self._device)
        return time.perf_counter()


@contextlib.contextmanager
def _batches(
    network: Network, values: Mapping[str, Any], seed: int, device: str
) -> Iterator[Iterator[Batch]]:
    """The same batch again and again, or new ones from loader workers."""
    from detscope.sweep.loading import loaded_batches

    size, workers = int(values["batch_size"]), int(values["num_workers"])
    if workers:
        with loaded_batches(network, size, workers, values["prefetch_factor"], seed, device) as batches:
            yield batches
        return
    batch = network.random_batch(size, seed=seed, device=device)

    def again() -> Iterator[Batch]:
        while True:
            yield batch

    yield again()


def _latency(step: _Step, batches: Iterator[Batch], rules: Measure, images: int) -> dict[str, Any]:
    times = Times()
    stopped_by = None
    while stopped_by is None:
        began = time.perf_counter()
        step.run(next(batches), times, began)
        stopped_by = enough(times.step, rules)
    check_durations(times.step)
    slow = warmup_length(times.step)
    kept = times.without(slow)
    middle, spread = middle_of(kept.step), spread_of(kept.step)
    found: dict[str, Any] = {
        **figures(kept.step, "step"),
        **figures(kept.forward, "forward"),
        "steps": len(kept.step),
        "slow_first_steps": slow,
        "stopped_by": stopped_by,
        "interval_width": middle.width,
        "interval_reached": middle.width is not None and middle.width <= rules.target_interval,
        "spread": spread,
        "stability": "too few" if spread is None else "unstable" if spread > UNSTABLE_SPREAD else "stable",
        "images_per_s": images / middle.median,
    }
    return found | (figures(kept.backward, "backward") if kept.backward else {})


def _memory(torch: Any, step: _Step, batch: Batch, device: str) -> dict[str, Any]:
    from detscope.sweep.allocated import allocated_peak, held_bytes

    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        return {
            "allocated_bytes": torch.cuda.max_memory_allocated(device),
            "reserved_bytes": torch.cuda.max_memory_reserved(device),
            "device_used_bytes": total - free,
        }
    held = held_bytes(step.network.module, step.optimizer, batch)
    above = allocated_peak(lambda: step.run(batch, Times()))
    return {"allocated_bytes": held + above, "held_bytes": held, "reserved_bytes": None}
