"""What kernels allocate for themselves on this machine's CPU: copies in blocked layouts, partial sums.

The library decides by shape and processor, so it is measured: every different call of these operators runs
once, alone, on zeros. Calls too costly for that get a rule: copies of input, weights and output.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from detscope.machine.profiling import make_session
from detscope.predict.trace.step import OperatorCall, TensorRecord

MEASURED = frozenset(
    {
        "aten.convolution",
        "aten.convolution_backward",
        "aten.native_batch_norm",
        "aten.native_batch_norm_backward",
        "aten.native_layer_norm",
        "aten.native_layer_norm_backward",
        "aten.native_group_norm",
        "aten.native_group_norm_backward",
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        "aten.upsample_nearest2d",
        "aten.upsample_bilinear2d",
        "aten.binary_cross_entropy_with_logits",
    }
)
_CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")
BUDGET = 60e9  # multiplications that all trials of one prediction may cost: some seconds
_LANES = 16  # floats of the widest vectors: channels of blocked layouts come in such groups
_SMALL = 1 << 19  # buffers of threads
_MEMORY, _MARK = "[memory]", "detscope call "


class ScratchSizes:
    """Bytes above inputs and outputs by call; a call that was measured once is not run again."""

    def __init__(self, budget: float = BUDGET) -> None:
        self._budget = budget
        self._known: dict[Any, int] = {}
        self._sizes: dict[OperatorCall, int] = {}  # the same, by call
        self.by_rule = 0

    @property
    def measured_count(self) -> int:
        """How many different calls were run."""
        return len(self._known) - self.by_rule

    @property
    def known_count(self) -> int:
        """How many calls have a size by now; it only grows, and no size changes."""
        return len(self._sizes)

    def measure_calls(self, calls: Sequence[OperatorCall]) -> None:
        """Run the calls that are not known yet, each once, as long as the budget lasts."""
        fresh: dict[Any, OperatorCall] = {}
        for call in calls:
            if call.name in MEASURED and call.sign_call() not in self._known | fresh:
                cost = count_call_multiplications(call)
                if cost <= self._budget:
                    self._budget -= cost
                    fresh[call.sign_call()] = call
                else:
                    self._known[call.sign_call()] = count_blocked_copies(call)
                    self.by_rule += 1
        if fresh:
            self._known |= zip(fresh, _try_calls(list(fresh.values())), strict=True)
        self._sizes |= {call: self._known[call.sign_call()] for call in calls if call.name in MEASURED}

    def known_size(self, call: OperatorCall) -> int:
        """What is known of a call; 0 where nothing is."""
        return self._sizes.get(call, 0)


@lru_cache(maxsize=50_000)
def bound_scratch(call: OperatorCall) -> int:
    """More than any kernel has been seen to ask for: two copies of each tensor, weights in full groups."""
    if call.name not in MEASURED:
        return 0
    size = 2 * count_blocked_copies(call)
    if call.name in _CONVOLUTIONS:
        weight = call.arguments[1 if call.name == _CONVOLUTIONS[0] else 2].shape
        groups = call.arguments[8 if call.name == _CONVOLUTIONS[0] else 9]
        outer, inner = (-(-side // _LANES) * _LANES for side in (-(-weight[0] // groups), weight[1]))
        size += 3 * 4 * groups * outer * inner * prod(weight[2:])
    return size + _SMALL


def count_call_multiplications(call: OperatorCall) -> float:
    """Of a convolution's pass; what the others cost does not matter."""
    if call.name not in _CONVOLUTIONS:
        return 0.0
    passes = 1 + _CONVOLUTIONS.index(call.name)
    places = (call.outputs[0] if passes == 1 else call.arguments[0]).shape
    return float(passes * places[0] * prod(places[2:]) * prod(call.arguments[passes].shape))


def count_blocked_copies(call: OperatorCall) -> int:
    """The rule: every large tensor of the call once more, channels in groups of 16."""
    tensors = [one for one in (*call.arguments, *call.outputs) if isinstance(one, TensorRecord)]
    shapes = [one.shape for one in tensors if len(one.shape) > 2]
    return sum(4 * one[0] * -(-one[1] // _LANES) * _LANES * prod(one[2:]) for one in shapes)


def _try_calls(calls: Sequence[OperatorCall]) -> list[int]:
    from torch.profiler import record_function

    made = []
    with torch.no_grad(), make_session(profile_memory=True) as session:
        for number, call in enumerate(calls):
            arguments = _make_real(call.arguments)
            positional = len(call.arguments) - len(call.keywords)
            named = dict(zip(call.keywords, arguments[positional:], strict=True))
            with record_function(f"{_MARK}{number}"):
                outputs = call.function(*arguments[:positional], **named)
            storages = [one.untyped_storage() for one in tree_leaves(outputs) if isinstance(one, Tensor)]
            made.append(sum({storage._cdata: storage.nbytes() for storage in storages}.values()))
            del outputs, storages, arguments, named
    return _measure_extra(session.profiler.kineto_results.events(), made)


def _make_real(value: Any) -> Any:
    if isinstance(value, TensorRecord):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype).zero_()
    return tuple(_make_real(item) for item in value) if isinstance(value, tuple) else value


def _measure_extra(events: Sequence[Any], made: Sequence[int]) -> list[int]:
    """The highest level inside each call above its outputs."""
    spans = sorted(
        (event.start_ns(), event.end_ns(), int(event.name().removeprefix(_MARK)))
        for event in events
        if event.name().startswith(_MARK)
    )
    changes = sorted(
        (event.start_ns(), place, event.nbytes())
        for place, event in enumerate(events)
        if event.name() == _MEMORY
    )
    found, place = [0] * len(made), 0
    for begin, end, number in spans:
        live = highest = 0
        while place < len(changes) and changes[place][0] <= end:
            if changes[place][0] >= begin:
                live += changes[place][2]
                highest = max(highest, live)
            place += 1
        found[number] = max(0, highest - made[number])
    return found
