"""The scratch memory a convolution asks for: an assumption about which algorithm the library picks."""

from __future__ import annotations

from math import ceil

from detscope.predict.layers.graph import Operation

RULES = ("backward", "both", "none")  # the passes in which Winograd scratch memory is asked for
_FLOAT = 4
_WINOGRAD_OUTPUT = 4  # tiles of 4 x 4 outputs,
_WINOGRAD_AREA = 36  # transformed as 6 x 6


def workspace_bytes(rule: str, operation: Operation, batch: int, *, backward: bool) -> int:
    """Scratch memory of one pass of one operation under a rule."""
    wanted = rule == "both" or (rule == "backward" and backward)
    return winograd_bytes(operation, batch) if wanted else 0


def winograd_bytes(operation: Operation, batch: int) -> int:
    """Transformed input, output and weights of a dense 3 x 3 convolution of stride 1; 0 for any other."""
    layer = operation.convolution
    if layer is None or layer.kernel != (3, 3) or layer.stride != (1, 1) or layer.groups != 1:
        return 0
    if layer.dilation != (1, 1):
        return 0
    height, width = operation.output_shape[-2:]
    tiles = batch * ceil(height / _WINOGRAD_OUTPUT) * ceil(width / _WINOGRAD_OUTPUT)
    channels = layer.in_channels + layer.out_channels
    return _FLOAT * _WINOGRAD_AREA * (tiles * channels + layer.in_channels * layer.out_channels)
