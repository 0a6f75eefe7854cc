"""The losses of a script: what it goes backward from, and the named parts its models return.

The loss of a step is what `backward()` was called on, of all batches that it accumulates together. Parts are
the scalars of a dict that a model or a loss returns, and what loss modules return; means over the batches.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from detscope.machine.accelerator import Accelerator

LOSS, RATE = "loss", "learning_rate"
_MOST_PARTS = 32
_FORMATS = {torch.float64: "d", torch.float32: "f", torch.float16: "e"}

Reading = float | torch.Tensor  # a number, or a copy on a device that is read when nobody has to wait


def read_scalar(tensor: Any) -> Reading | None:
    """The value of a scalar. On the host by its address: an operator would be seen by whoever profiles."""
    if type(tensor) is not torch.Tensor or tensor.numel() != 1 or not tensor.is_floating_point():
        return None
    if tensor.is_meta:
        return None
    if tensor.device.type != "cpu":
        # a graph that is captured holds no work of ours
        capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
        return None if capturing else tensor.detach().float().reshape(())
    if tensor.is_neg():
        return None
    try:
        raw = ctypes.string_at(tensor.data_ptr(), tensor.element_size())
    except RuntimeError:  # a tensor without memory, as transforms of functions make them
        return None
    if tensor.dtype is torch.bfloat16:
        return float(struct.unpack("<f", b"\0\0" + raw)[0])
    kind = _FORMATS.get(tensor.dtype)
    return None if kind is None else float(struct.unpack(kind, raw)[0])


class StepLosses:
    """What a step has shown of its losses so far."""

    def __init__(self) -> None:
        self.by_optimizer: list[tuple[str, list[Reading]]] = []  # backward passes before each one's step
        self.waiting: list[Reading] = []  # that no optimizer step has followed yet
        self.parts: dict[str, list[Reading]] = {}
        self.rate: float | None = None


class LossKeeper:
    """Told by the tracker, emptied at every border."""

    def __init__(self) -> None:
        self._now = StepLosses()
        self._scaled: list[tuple[Any, Any]] = []  # what a gradient scaler made, and of what
        self._names: dict[int, str] = {}
        self._closure_seen = False

    def add_returned(self, label: str, has_weights: bool, output: Any) -> None:
        """A model or a loss has returned while gradients are on."""
        if isinstance(output, Mapping):
            nested = [one for one in output.values() if isinstance(one, Mapping)]  # transformers' `loss_dict`
            for name, value in (pair for one in (output, *nested) for pair in one.items()):
                if isinstance(name, str) and _is_loss(value):
                    self._add_part(name, value)
        elif not has_weights and _is_loss(output):
            self._add_part(label, output)

    def _add_part(self, name: str, value: Any) -> None:
        reading = read_scalar(value)
        if reading is not None and (name in self._now.parts or len(self._now.parts) < _MOST_PARTS):
            self._now.parts.setdefault(name, []).append(reading)

    def note_scaled(self, before: Any, after: Any) -> None:
        """A gradient scaler has multiplied a loss: the script means the one before."""
        if type(before) is torch.Tensor and type(after) is torch.Tensor and before is not after:
            self._scaled = [(weakref.ref(after), read_scalar(before))]

    def add_backward(self, tensors: Any, in_optimizer: bool) -> None:
        """The engine is entered to fill gradients; in an optimizer (closures) the first time counts."""
        if in_optimizer and self._closure_seen:
            return
        self._closure_seen = in_optimizer
        for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors:
            known = [value for made, value in self._scaled if made() is tensor]
            reading = known[0] if known else read_scalar(tensor)
            if reading is not None:
                self._now.waiting.append(reading)

    def end_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer has stepped, or a scaler has decided against it."""
        self._closure_seen = False
        now = self._now
        if now.waiting:
            if id(optimizer) not in self._names:
                kind = type(optimizer).__name__
                same = sum(name.split(" ")[0] == kind for name in self._names.values())
                self._names[id(optimizer)] = f"{kind} {same + 1}" if same else kind
            now.by_optimizer.append((self._names[id(optimizer)], now.waiting))
            now.waiting = []
        if now.rate is None:
            groups = getattr(optimizer, "param_groups", None)
            rate = groups[0].get("lr") if groups else None
            if isinstance(rate, torch.Tensor):  # one on a device is not waited for
                rate = read_scalar(rate) if rate.device.type == "cpu" else None
            now.rate = float(rate) if isinstance(rate, (int, float)) else None

    def take_losses(self, earlier: bool = False) -> StepLosses:
        """The step has ended; `earlier`: before the optimizer step that was told last."""
        found, self._now = self._now, StepLosses()
        self._scaled, self._closure_seen = [], False
        if earlier:
            self._now.by_optimizer, found.by_optimizer = found.by_optimizer[-1:], found.by_optimizer[:-1]
            self._now.rate = found.rate
        return found


class LateLosses:
    """Reads what lies on a device when it has been copied from there, so that reading makes nobody wait."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        # step, losses, their copy on the host, and the mark behind it in the device's queue
        self._pending: deque[tuple[int, StepLosses, torch.Tensor, Any]] = deque()

    def put_losses(self, step: int, losses: StepLosses) -> list[tuple[int, dict[str, float]]]:
        """Take a step's losses; those that can be read by now: the same step's, or some before it."""
        # in the order in which `read_values` asks for them
        grouped = [readings for _, readings in losses.by_optimizer]
        known = [one for readings in (*grouped, losses.waiting, *losses.parts.values()) for one in readings]
        copies = [reading for reading in known if isinstance(reading, torch.Tensor)]
        if not copies:
            return [*self.read_pending(wait=False), (step, read_values(losses, iter(())))]
        together = torch.stack([copy.to(copies[0].device) for copy in copies]).to("cpu", non_blocking=True)
        mark = None
        if self._accelerator.has_clock and not self._accelerator.is_capturing():
            mark = self._accelerator.make_mark()
            self._accelerator.put_mark(mark)
        self._pending.append((step, losses, together, mark))
        return self.read_pending(wait=False)

    def read_pending(self, wait: bool = True) -> list[tuple[int, dict[str, float]]]:
        """What has been copied by now; or all of it, when the recording ends."""
        if self._pending and self._accelerator.is_capturing():
            return []
        if self._pending and wait:
            self._accelerator.wait()
        found = []
        while self._pending:
            step, losses, copied, mark = self._pending[0]
            if not wait and (mark is None or not self._accelerator.has_passed(mark)):
                break
            self._pending.popleft()
            found.append((step, read_values(losses, iter(copied.tolist()))))
        return found


def read_values(losses: StepLosses, copied: Any) -> dict[str, float]:
    """Numbers by name: the loss, what each optimizer followed, parts, the learning rate."""

    def read_number(reading: Reading) -> float:
        return float(next(copied)) if isinstance(reading, torch.Tensor) else reading

    found: dict[str, float] = {}
    groups: dict[str, float] = {}
    for name, readings in losses.by_optimizer:
        groups[name] = groups.get(name, 0.0) + sum([read_number(one) for one in readings])
    waiting = sum([read_number(one) for one in losses.waiting])
    if groups or losses.waiting:
        found[LOSS] = sum(groups.values()) + waiting
    if len(groups) > 1:
        found |= {f"before {name}": value for name, value in groups.items()}
    parts = {name: [read_number(one) for one in readings] for name, readings in losses.parts.items()}
    if len(parts) > 1:
        found |= {name: sum(v) / len(v) for name, v in parts.items() if name not in (LOSS, RATE)}
    if losses.rate is not None:
        found[RATE] = losses.rate
    return found


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad
