"""Building a network without drawing its random weights: they are read from a file right after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_INITIALISERS = (
    "uniform_",
    "normal_",
    "trunc_normal_",
    "orthogonal_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
)


@contextmanager
def weights_left_unfilled() -> Iterator[None]:
    """Leave parameters as their memory was found; buffers, anchors and shapes are made as always.

    Drawing the 133 million weights of a VGG takes seconds and touches half a gigabyte, for nothing.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    # Draws that do not go through torch.nn.init give a constant: some draw again until all is within bounds.
    first_argument = {torch.Tensor.uniform_: "from", torch.Tensor.normal_: "mean"}

    class _NothingDrawn(TorchFunctionMode):
        def __torch_function__(
            self,
            function: Callable[..., Any],
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            named = kwargs or {}
            if function in first_argument:
                value = args[1] if len(args) > 1 else named.get(first_argument[function], 0.0)
                return args[0].fill_(value)
            return function(*args, **named)

    own = {name: getattr(torch.nn.init, name) for name in _INITIALISERS}
    try:
        for name in own:
            setattr(torch.nn.init, name, _unchanged)
        with _NothingDrawn():
            yield
    finally:
        for name, initialiser in own.items():
            setattr(torch.nn.init, name, initialiser)


def _unchanged(tensor: Any, *_: object, **__: object) -> Any:
    return tensor
