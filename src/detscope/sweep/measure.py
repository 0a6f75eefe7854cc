"""One trial, inside its own process: build the network, warm up, measure until it is known well enough."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from detscope.machine.accelerator import Accelerator, find_accelerator
from detscope.machine.limits import status_bytes
from detscope.machine.profiling import make_session
from detscope.sweep.limits import forget_resident_peak, limit_memory
from detscope.sweep.settings import MeasureRules

if TYPE_CHECKING:
    from torch import Tensor, nn

    from detscope.zoo.networks import Batch, Network

_ENOUGH = 10**9  # batches
_RATE = 1e-6  # weights stay as they are: every step is the same work
LEAST_SECONDS = 0.3  # of quick steps: six of them could all be slow ones
UNSTABLE_SPREAD = 0.10
_EXACT = 1000
_OUTLIER_WIDTHS, _OUTLIER_LEAST = 5.0, 0.25


@dataclass(frozen=True)
class MedianInterval:
    """A median with its 95 % interval; None where there are too few samples for one."""

    median: float
    low: float | None
    high: float | None
    count: int

    @property
    def relative_width(self) -> float | None:
        """The interval's width as a share of the median."""
        if self.low is None or self.high is None or self.median <= 0:
            return None
        return (self.high - self.low) / self.median


def find_median(values: Sequence[float]) -> MedianInterval:
    """The median and its distribution-free interval by order statistics; six samples have one."""
    ordered = sorted(values)
    count, median = len(ordered), statistics.median(ordered)
    below, rank = 0, -1
    if count > _EXACT:
        rank = math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1
    # of at most 1000 fair coins: how few heads are still not surprising
    while count <= _EXACT and 2 * (below + math.comb(count, rank + 1)) <= 0.05 * 2**count:
        rank += 1
        below += math.comb(count, rank)
    if rank < 0:
        return MedianInterval(median, None, None, count)
    return MedianInterval(median, ordered[rank], ordered[count - 1 - rank], count)


def count_warmup(values: Sequence[float]) -> int:
    """Slow samples at the very beginning that the later half does not share."""
    if len(values) < 12:
        return 0
    settled = values[len(values) // 2 :]
    middle = statistics.median(settled)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in settled)
    limit = middle + max(_OUTLIER_WIDTHS * deviation, _OUTLIER_LEAST * middle)
    count = 0
    while count < len(values) // 2 and values[count] > limit:
        count += 1
    return count


def find_stop_reason(seconds: Sequence[float], rules: MeasureRules) -> str | None:
    """Why measuring may stop: "interval", "steps" or "time"; None: go on."""
    count, spent = len(seconds), sum(seconds)
    if count >= rules.max_steps:
        return "steps"
    if count >= rules.min_steps and spent >= LEAST_SECONDS:
        width = find_median(seconds[count_warmup(seconds) :]).relative_width
        if width is not None and width <= rules.target_interval:
            return "interval"
    # a step that is slower than the whole time allowed is measured twice
    return "time" if spent >= rules.max_seconds and count >= min(2, rules.min_steps) else None


def list_figures(seconds: Sequence[float], name: str) -> dict[str, Any]:
    """Milliseconds of a part of the step, as columns."""
    middle = find_median(seconds)
    return {
        f"{name}_ms": middle.median * 1e3,
        f"{name}_low_ms": None if middle.low is None else middle.low * 1e3,
        f"{name}_high_ms": None if middle.high is None else middle.high * 1e3,
    }


def measure_spread(values: Sequence[float]) -> float | None:
    """Width of the middle half as that of a normal distribution, over the median; needs four samples."""
    if len(values) < 4:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 1.349 / middle if middle > 0 else None


def count_held_bytes(module: nn.Module, optimizer: Any, batch: Any) -> int:
    """Bytes of weights, gradients, optimizer state and batch between two steps; shared memory once."""
    storages: dict[int, int] = {}
    for tensor in _list_tensors((module, optimizer, batch)):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _list_tensors(value: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
        if value.grad is not None:
            yield value.grad
    elif isinstance(value, torch.nn.Module):
        yield from _list_tensors([*value.parameters(), *value.buffers()])
    elif isinstance(value, torch.optim.Optimizer):
        yield from _list_tensors(list(value.state.values()))
    elif isinstance(value, Mapping):
        yield from _list_tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_tensors(item)
    elif is_dataclass(value):
        yield from _list_tensors([getattr(value, part.name) for part in fields(value)])


def measure_allocated_peak(step: Callable[[], object]) -> int:
    """The most bytes alive at a moment of `step` above those alive at its beginning."""
    with make_session(profile_memory=True) as session:
        step()
    events = session.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), index, event.nbytes())
        for index, event in enumerate(events)
        if event.name() == "[memory]" and event.device_type().name == "CPU"
    )
    live = peak = 0
    for _, _, size in changes:
        live += size
        peak = max(peak, live)
    return peak


class RandomBatches:
    """A data set whose items are whole random batches, each of its own seed."""

    def __init__(self, network: Network, batch_size: int, seed: int) -> None:
        self._network, self._batch_size, self._seed = network, batch_size, seed

    def __len__(self) -> int:
        return _ENOUGH

    def __getitem__(self, index: int) -> Batch:
        return self._network.random_batch(self._batch_size, seed=self._seed + index)


@contextmanager
def _open_batches(
    network: Network, values: Mapping[str, Any], seed: int, device: str
) -> Iterator[Iterator[Batch]]:
    """The same batch again and again, or new ones that loader workers make ahead until the block ends."""
    from torch.utils.data import DataLoader

    size = int(values["batch_size"])
    if not values["num_workers"]:
        yield repeat(network.random_batch(size, seed=seed, device=device))
        return
    loader: Any = DataLoader(
        RandomBatches(network, size, seed),  # type: ignore[arg-type]
        batch_size=None,
        sampler=range(_ENOUGH),
        num_workers=int(values["num_workers"]),
        prefetch_factor=values["prefetch_factor"],
    )
    iterator = iter(loader)
    try:
        yield (_move_value(batch, device) for batch in iterator)
    finally:
        iterator._shutdown_workers()


def _move_value(value: Any, device: str) -> Any:
    if hasattr(value, "to"):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: _move_value(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_move_value(item, device) for item in value]
    if hasattr(value, "inputs"):
        return type(value)(_move_value(value.inputs, device), _move_value(value.targets, device))
    return value


@dataclass
class StepTimes:
    """Seconds of every measured step and of its parts."""

    step: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)


def measure_trial(request: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one trial, as columns of the store."""
    from detscope.machine.devices import take_device

    new_peak = forget_resident_peak()
    before = status_bytes("VmRSS")
    accelerator = find_accelerator(take_device(request["device"]))
    limit: Callable[[int | None], object] = limit_memory if accelerator.is_host else accelerator.limit_memory
    limit(request.get("memory_bytes"))
    try:
        return _measure_network(request, accelerator, before, new_peak)
    finally:
        limit(None)


def _measure_network(
    request: Mapping[str, Any], accelerator: Accelerator, before: int | None, new_peak: bool
) -> dict[str, Any]:
    import random

    import numpy as np
    import torch

    from detscope.zoo.networks import load_network

    values, rules = request["values"], MeasureRules(**request["measure"])
    device = accelerator.name
    seed = int(values["seed"]) + int(request["repetition"])
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if values["threads"]:
        torch.set_num_threads(values["threads"])
    network = load_network(request["network"], image_size=values["image_size"], seed=seed).to(device)
    if values["channels_last"]:
        network.module.to(memory_format=torch.channels_last)
    optimizer = None
    if values["stage"] == "training":
        trained = [parameter for parameter in network.module.parameters() if parameter.requires_grad]
        sgd = partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4)
        optimizer = (sgd if values["optimizer"] == "sgd" else torch.optim.AdamW)(trained, lr=_RATE)
    step = _TrialStep(torch, network, optimizer, accelerator, values["precision"])
    with _open_batches(network, values, seed, device) as batches:
        found: dict[str, Any] = {
            "parameters": network.parameters,
            "network_kind": network.kind,
            "image_pixels": network.image_size,
            "torch_threads": torch.get_num_threads(),
            "images": values["batch_size"],
        }
        accelerator.forget_peaks()
        for _ in range(max(1, rules.warmup_steps)):
            step.run_step(next(batches), StepTimes())
        if "latency" in values["variables"]:
            found |= _measure_latency(step, batches, rules, int(values["batch_size"]))
        if "memory" in values["variables"]:
            found["process_bytes"] = status_bytes("VmHWM") if new_peak else None
            found["process_base_bytes"] = before
            found |= _measure_memory(step, next(batches), accelerator)
    return found


class _TrialStep:
    """One step of the stage that is measured; the optimizer is None where it is inference."""

    def __init__(
        self, torch: Any, network: Network, optimizer: Any, accelerator: Accelerator, precision: str
    ) -> None:
        self.network, self.optimizer, self._accelerator = network, optimizer, accelerator
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self._precision: Callable[[], Any] = nullcontext
        if kind is not None:
            self._precision = partial(torch.autocast, accelerator.kind, kind)
        network.module.train(optimizer is not None)

    def run_step(self, batch: Batch, times: StepTimes, began: float | None = None) -> None:
        """Run it and note how long it and its parts took; `began` is when its batch was asked for."""
        start = self._read_clock()
        if self.optimizer is None:
            with self._precision():
                self.network.infer(batch.inputs)
            done = self._read_clock()
            times.forward.append(done - start)
        else:
            with self._precision():
                loss = self.network.loss(batch)
            forward = self._read_clock()
            loss.backward()
            backward = self._read_clock()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            done = self._read_clock()
            times.forward.append(forward - start)
            times.backward.append(backward - forward)
        times.step.append(done - (start if began is None else began))

    def _read_clock(self) -> float:
        self._accelerator.wait()
        return time.perf_counter()


def _measure_latency(
    step: _TrialStep, batches: Iterator[Batch], rules: MeasureRules, images: int
) -> dict[str, Any]:
    times = StepTimes()
    stopped_by = None
    while stopped_by is None:
        began = time.perf_counter()  # waiting for a batch is part of a step
        step.run_step(next(batches), times, began)
        stopped_by = find_stop_reason(times.step, rules)
    wrong = [value for value in times.step if not math.isfinite(value) or value <= 0]
    if wrong:  # an error and never a result
        raise ValueError(f"{len(wrong)} of {len(times.step)} durations are not positive numbers")
    slow = count_warmup(times.step)
    kept = StepTimes(times.step[slow:], times.forward[slow:], times.backward[slow:])
    middle, spread = find_median(kept.step), measure_spread(kept.step)
    width = middle.relative_width
    found: dict[str, Any] = {
        **list_figures(kept.step, "step"),
        **list_figures(kept.forward, "forward"),
        "steps": len(kept.step),
        "slow_first_steps": slow,
        "stopped_by": stopped_by,
        "interval_width": width,
        "interval_reached": width is not None and width <= rules.target_interval,
        "spread": spread,
        "stability": "too few" if spread is None else "unstable" if spread > UNSTABLE_SPREAD else "stable",
        "images_per_s": images / middle.median,
    }
    return found | (list_figures(kept.backward, "backward") if kept.backward else {})


def _measure_memory(step: _TrialStep, batch: Batch, accelerator: Accelerator) -> dict[str, Any]:
    memory = accelerator.read_memory()
    if memory is not None:
        known = memory.total is not None and memory.free is not None
        return {
            "allocated_bytes": memory.peak_allocated,
            "reserved_bytes": memory.peak_reserved,
            "device_used_bytes": (memory.total or 0) - (memory.free or 0) if known else None,
        }
    held = count_held_bytes(step.network.module, step.optimizer, batch)
    above = measure_allocated_peak(lambda: step.run_step(batch, StepTimes()))
    return {"allocated_bytes": held + above, "held_bytes": held, "reserved_bytes": None}
