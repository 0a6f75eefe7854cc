"""A network as a list of operations with shapes: all that memory simulation and latency models need to know.

Whatever produces one (a recorded list of layers, a tracer of torch modules) is free in its ways; what follows
knows only these types. Shapes are those of a batch of one: the first dimension is the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from detscope.predict.layers import kinds

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    """What a convolution is beyond its shapes; pairs are (height, width)."""

    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def is_depthwise(self) -> bool:
        """One group per input channel."""
        return self.groups > 1 and self.groups == self.in_channels


@dataclass(frozen=True)
class Operation:
    """One operation: `inputs` and `output` are tensor ids; an in-place operation has its input as output."""

    kind: str
    inputs: tuple[int, ...]
    input_shapes: tuple[Shape, ...]
    output: int
    output_shape: Shape
    parameters: tuple[int, ...] = ()  # elements of each trained tensor: weight, bias
    convolution: Convolution | None = None
    stage: str = ""  # of a detector: backbone, rpn, ...
    module: str = ""

    @property
    def in_place(self) -> bool:
        """The output shares its input's memory."""
        return self.output in self.inputs

    @property
    def input_elements(self) -> int:
        """Elements of all inputs, at a batch of one."""
        return sum(prod(shape) for shape in self.input_shapes)

    @property
    def output_elements(self) -> int:
        """Elements of the output, at a batch of one."""
        return prod(self.output_shape)


@dataclass(frozen=True)
class SideOperators:
    """Operators beside the layers: views, boxes of the targets, comparisons; no one of them is a layer.

    Pairs are (in every step, and more for each image): calls, and elements that all of them read and write.
    """

    kind: str
    stage: str
    calls: tuple[float, float]
    elements: tuple[float, float]


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """A network in the order of its forward pass; equal only to itself, so that it can be a key."""

    name: str
    operations: tuple[Operation, ...]
    family: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[SideOperators, ...] = ()

    @property
    def parameter_sizes(self) -> tuple[int, ...]:
        """Elements of every trained tensor."""
        return tuple(size for operation in self.operations for size in operation.parameters)

    @property
    def input_shape(self) -> Shape:
        """The shape of the first operation's first input."""
        return self.operations[0].input_shapes[0]

    @property
    def unknown_kinds(self) -> tuple[str, ...]:
        """Kinds of operations that no rule was written for."""
        return tuple(sorted({operation.kind for operation in self.operations} - kinds.KNOWN_KINDS))
