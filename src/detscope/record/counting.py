"""FLOPs and bytes of one pass, by module and direction: counted, not timed.

The pass runs once more under a dispatch mode that sees every operator, forward and backward. The
probes of the model write their events as always, but against a clock that counts operators; the
same replay that shares out time then shares out FLOPs and bytes: self figures add up to the whole.

FLOPs: torch's own formulas for convolutions, matrix products and attention, one multiplication and one
addition being two. RoIAlign: 8 per sample (a bilinear mean of four and its sum) and channel, 1 per
output. NMS: 12 per pair of boxes, each pair once: an upper bound, since removed boxes are skipped.
Other operators count no FLOPs. Bytes: inputs read and outputs written by each operator, views apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from detscope.record.model.borders import BorderWriter
from detscope.record.model.named_parts import NamedParts
from detscope.record.model.phases import PhaseProbes
from detscope.record.model.probes import ModelProbes
from detscope.record.steps.events import TIME, WIDTH, EventBuffer
from detscope.record.steps.nodes import NodeTable
from detscope.record.steps.replay import replay_events
from detscope.zoo.contract import Stage

FLOPS_PER_SAMPLE, FLOPS_PER_OUTPUT, FLOPS_PER_PAIR = 8, 1, 12


@dataclass(frozen=True)
class Cost:
    """What one node does in one direction, per pass."""

    kind: str
    path: str
    direction: str
    flops: int
    self_flops: int
    bytes: int
    self_bytes: int


def count_costs(
    model: nn.Module, one_pass: Callable[[], object], stages: Sequence[Stage], modules: str = "all"
) -> list[Cost]:
    """Run the pass once and account for its arithmetic; leaves nothing on the model."""
    counter = _OperatorCounter()
    nodes, buffer = NodeTable(), EventBuffer(now=counter.now)
    borders = BorderWriter(buffer)
    phases = PhaseProbes(buffer, nodes, model, (), NamedParts(nodes, borders))
    probes = ModelProbes(model, nodes, borders, modules, stages, (), lambda *_: None, lambda *_: None, phases)
    phases.attach()
    probes.attach_modules(modules=True)
    try:
        with counter:
            one_pass()
    finally:
        probes.remove_all()
        phases.remove()
    events = buffer.take_events().items
    moments = events[TIME::WIDTH]
    flops, moved = (
        replay_events(events, nodes, 0, counted[-1], times=[counted[moment] for moment in moments])
        for counted in (counter.flops, counter.bytes)
    )
    parts = (flops.total_ns, flops.self_ns, moved.total_ns, moved.self_ns)
    return [
        Cost(nodes[key[0]].kind, nodes[key[0]].path, key[1], *(part.get(key, 0) for part in parts))
        for key in {key: None for part in parts for key in part}
    ]


class _OperatorCounter(TorchDispatchMode):
    """Counts operators; its clock says how many there were, its lists what they had done until then."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = _find_own_formulas()  # now: a model that uses them has loaded them
        self.flops = [0]
        self.bytes = [0]

    def now(self) -> int:
        """The clock of the events: how many operators ran."""
        return len(self.flops) - 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet not in flop_registry and packet not in self.own and not func.is_view:
            with self:  # an operator made of others is counted by its parts
                parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
        result = func(*args, **kwargs)
        flops = 0
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=result)
        elif packet in self.own:
            flops = self.own[packet](result, *args, **kwargs)
        self.flops.append(self.flops[-1] + int(flops))
        self.bytes.append(self.bytes[-1] + (0 if func.is_view else _count_bytes(args, kwargs, result)))
        return result


def _count_bytes(*parts: Any) -> int:
    tensors = {id(leaf): leaf for leaf in tree_leaves(parts) if isinstance(leaf, torch.Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _count_roi_align(output: torch.Tensor, _features: torch.Tensor, rois: torch.Tensor, *rest: Any) -> int:
    scale, height, width, ratio = rest[:4]
    per_bin = _count_samples(rois, scale, height, width, ratio)
    return int(output.shape[1] * height * width * (FLOPS_PER_SAMPLE * per_bin + FLOPS_PER_OUTPUT * len(rois)))


def _count_roi_backward(_: torch.Tensor, gradient: torch.Tensor, rois: torch.Tensor, *rest: Any) -> int:
    scale, height, width, _batch, channels = rest[:5]
    ratio = int(rest[7]) if len(rest) > 7 else -1
    per_bin = _count_samples(rois, scale, height, width, ratio)
    return int(channels * height * width * (FLOPS_PER_SAMPLE * per_bin + FLOPS_PER_OUTPUT * len(gradient)))


def _count_samples(rois: torch.Tensor, scale: float, height: int, width: int, ratio: int) -> int:
    """Samples per output bin, summed over all regions; without a ratio as many as the region is large."""
    if ratio > 0:
        return ratio * ratio * int(rois.shape[0])
    sizes = (rois[:, 3:5] - rois[:, 1:3]).detach().cpu() * scale
    return sum(
        max(1, math.ceil(float(size[1]) / height)) * max(1, math.ceil(float(size[0]) / width))
        for size in sizes
    )


def _count_nms(output: torch.Tensor, boxes: torch.Tensor, *_: Any) -> int:  # noqa: ARG001
    count = int(boxes.shape[0])
    return FLOPS_PER_PAIR * count * (count - 1) // 2


def _find_own_formulas() -> dict[Any, Callable[..., int]]:
    library = getattr(torch.ops, "torchvision", None)
    formulas: dict[str, Callable[..., int]] = {
        "roi_align": _count_roi_align,
        "_roi_align_backward": _count_roi_backward,
        "nms": _count_nms,
    }
    return {getattr(library, name): one for name, one in formulas.items() if hasattr(library, name)}
