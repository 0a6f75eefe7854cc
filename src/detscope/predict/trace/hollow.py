"""Operators without their work: outputs of the right shapes, all zeros that no one has written.

Detectors choose boxes by their numbers, so tensors must be real. What they compute on feature maps decides
about no shape, though, and is nearly all of the time: those operators are left out. Their outputs lie in
memory that the system hands out as zeros and that nobody touches, so it takes no place either.
Outputs of the operators met most often are known without asking torch, whose own answer takes a millisecond.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detscope.predict.trace.step import BACKWARD

BATCH_NORM, BATCH_NORM_BACKWARD = "aten.native_batch_norm", "aten.native_batch_norm_backward"
# one output, like all of their tensors
LIKE_THEIR_INPUTS = frozenset(
    f"aten.{name}"
    for name in (
        "add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "pow", "clamp", "relu", "silu", "sigmoid",
        "silu_backward", "sigmoid_backward", "threshold_backward", "hardtanh_backward", "hardswish_backward",
        "hardsigmoid_backward",
    )
)  # fmt: skip
_TRAINS, _TRAINS_BACKWARD, _WANTED = 5, 7, 9  # places of the arguments
ALWAYS = frozenset(
    {
        "aten.convolution",
        "aten.convolution_backward",
        "aten.native_batch_norm",
        "aten.native_batch_norm_backward",
        "aten.max_pool2d_with_indices",
        "aten.max_pool2d_with_indices_backward",
        "aten.addmm",
        "aten.mm",
        "aten.bmm",
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        "torchvision.roi_align",
        "torchvision._roi_align_backward",
    }
)
# on feature maps, and on anything in backward
ELEMENTWISE = frozenset(
    f"aten.{name}"
    for name in (
        "add", "sub", "rsub", "mul", "div", "relu", "silu", "gelu", "sigmoid", "hardswish", "hardsigmoid",
        "hardtanh", "tanh", "elu", "leaky_relu", "clamp", "abs", "pow", "exp", "log", "neg", "clone", "cat",
        "stack", "mean", "sum", "constant_pad_nd", "upsample_nearest2d", "upsample_bilinear2d", "avg_pool2d",
        "_adaptive_avg_pool2d", "native_group_norm", "native_layer_norm", "native_dropout",
        "binary_cross_entropy_with_logits", "new_zeros", "zeros_like", "ones_like", "threshold_backward",
        "silu_backward", "gelu_backward", "sigmoid_backward", "hardswish_backward", "hardsigmoid_backward",
        "hardtanh_backward", "native_group_norm_backward", "native_layer_norm_backward",
        "upsample_nearest2d_backward", "upsample_bilinear2d_backward", "slice_backward", "select_backward",
        "_adaptive_avg_pool2d_backward", "avg_pool2d_backward",
    )
)  # fmt: skip
IN_PLACE = frozenset(
    f"aten.{name}_"
    for name in (
        "add", "sub", "mul", "div", "relu", "silu", "sigmoid", "hardswish", "hardsigmoid", "hardtanh",
        "leaky_relu", "elu", "copy", "fill", "zero", "bernoulli", "clamp",
    )
)  # fmt: skip
_CONVOLUTIONS = {"aten.convolution": 0, "aten.convolution_backward": 1}  # where image and weight stand
_LARGE = 1 << 14  # elements; smaller ones cost less to compute than to leave out
_FEATURE_MAP = 4  # dimensions
_OWN_PAGES = 1 << 16  # bytes from which memory is asked of the system itself


class OutputLayout(NamedTuple):
    """Of an output."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def describe_known(name: str, args: Any, named: Any) -> OutputLayout | tuple[OutputLayout, ...] | None:
    """What an operator gives; None: torch has to be asked."""
    if named:
        return None
    if name in LIKE_THEIR_INPUTS:
        return _like_inputs(args)
    if name == BATCH_NORM and args[_TRAINS]:
        return _describe_batch_norm(args[0], args[:5])
    if name == BATCH_NORM_BACKWARD and args[_TRAINS_BACKWARD] and all(args[_WANTED]):
        same = _like_inputs(args[:2])
        return _describe_batch_norm(args[1], args[:7]) if same and args[2] is not None else None
    return None


def _like_inputs(args: Any) -> OutputLayout | None:
    """Where all tensors have one shape and lie in memory in its order."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    others = (one for one in args if not isinstance(one, Tensor))
    if not tensors or not all(isinstance(one, int | float) for one in others):
        return None
    first = tensors[0]
    same = all(one.shape == first.shape and _is_plain(one) for one in tensors)
    return OutputLayout(tuple(first.shape), first.stride(), first.dtype) if same else None


def _describe_batch_norm(image: Tensor, tensors: Any) -> tuple[OutputLayout, ...] | None:
    """An image, and two numbers per channel."""
    if not _is_plain(image) or any(one is not None and one.dtype != torch.float32 for one in tensors):
        return None
    channels = OutputLayout((image.shape[1],), (1,), torch.float32)
    return OutputLayout(tuple(image.shape), image.stride(), torch.float32), channels, channels


def _is_plain(tensor: Tensor) -> bool:
    """Numbers of 32 bits, row by row, nothing empty; strides of single rows are not left open either."""
    step, strides = 1, []
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= size
    return tensor.dtype == torch.float32 and step > 0 and tensor.stride() == tuple(reversed(strides))


class HollowRunner:
    """Runs an operator, or gives the zeros that stand for its work."""

    def __init__(self) -> None:
        self._shapes: dict[Any, Any] = {}

    def __call__(self, name: str, function: Any, args: Any, named: Mapping[str, Any], phase: str) -> Any:
        """The operator's outputs."""
        if name in IN_PLACE:
            return args[0] if _left_out(args[0], phase) else function(*args, **named)
        if name not in ALWAYS and (name not in ELEMENTWISE or not _touches_large(args, phase)):
            return function(*args, **named)
        key = (function, _make_key(args), _make_key(tuple(named.items())))
        shapes = self._shapes.get(key)
        if shapes is None:
            shapes = describe_known(name, args, named)
            shapes = shapes or _describe_tensors(function(*_as_meta(args), **_as_meta(dict(named))))
            if name in _CONVOLUTIONS:  # on a CPU it keeps this layout if either has it; shapes would not tell
                first = _CONVOLUTIONS[name]
                if any(
                    one.dim() == _FEATURE_MAP and suggest_memory_format(one) == torch.channels_last
                    for one in args[first : first + 2]
                ):
                    shapes = _with_channels_last(shapes)
            self._shapes[key] = shapes
        if name not in ALWAYS and not _all_left_out(shapes, phase):
            return function(*args, **named)
        return _fill_outputs(shapes)


def _left_out(value: Any, phase: str) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype.is_floating_point
        and (phase == BACKWARD or value.dim() >= _FEATURE_MAP)
        and value.numel() >= _LARGE
    )


def _touches_large(value: Any, phase: str) -> bool:
    if isinstance(value, list | tuple):
        return any(_touches_large(item, phase) for item in value)
    return _left_out(value, phase)


def _all_left_out(shapes: Any, phase: str) -> bool:
    """Only feature maps, or in backward anything: a smaller output may be what boxes are chosen by."""
    if isinstance(shapes, OutputLayout):
        return phase == BACKWARD or len(shapes.shape) >= _FEATURE_MAP
    return all(_all_left_out(item, phase) for item in shapes if item is not None)


def _describe_tensors(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return OutputLayout(tuple(outputs.shape), outputs.stride(), outputs.dtype)
    return None if outputs is None else tuple(map(_describe_tensors, outputs))


def _with_channels_last(shapes: Any) -> Any:
    """The first output (the image, or its gradient) in that layout."""
    if not isinstance(shapes, OutputLayout):
        return (_with_channels_last(shapes[0]) if shapes[0] else None, *shapes[1:])
    like = torch.empty(shapes.shape, dtype=shapes.dtype, device="meta", memory_format=torch.channels_last)
    return shapes._replace(stride=like.stride())


def _fill_outputs(shapes: Any) -> Any:
    if not isinstance(shapes, OutputLayout):
        return None if shapes is None else tuple(map(_fill_outputs, shapes))
    size = prod(shapes.shape) * shapes.dtype.itemsize
    if size < _OWN_PAGES:
        return torch.empty_strided(shapes.shape, shapes.stride, dtype=shapes.dtype).zero_()
    return torch.frombuffer(mmap.mmap(-1, size), dtype=shapes.dtype).as_strided(shapes.shape, shapes.stride)


def _as_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return [_as_meta(item) for item in value]
    return {name: _as_meta(item) for name, item in value.items()} if isinstance(value, dict) else value


def _make_key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.shape, value.stride(), value.dtype)
    return tuple(map(_make_key, value)) if isinstance(value, list | tuple) else value
