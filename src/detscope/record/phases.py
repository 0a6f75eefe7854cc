"""Phases of a step, found from outside: root forward, the autograd engine's entry, optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from detscope.record.events import EventBuffer
from detscope.record.nodes import NodeTable


class PhaseProbes:
    """Attach to a model and its optimizers; the engine's entry is watched process-wide while attached."""

    def __init__(
        self,
        buffer: EventBuffer,
        nodes: NodeTable,
        root: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._buffer = buffer
        self._root = root
        self._optimizers = optimizers
        self._forward = nodes.phase("forward").number
        self._backward = nodes.phase("backward").number
        self._optimizer = nodes.phase("optimizer").number
        self._undo: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Begin to watch."""
        buffer, forward = self._buffer, self._forward
        first = self._root.register_forward_pre_hook(lambda _m, _a: _discard(buffer.enter(forward)))
        last = self._root.register_forward_hook(
            lambda _m, _a, _o: _discard(buffer.exit(forward)), always_call=True
        )
        self._undo += [first.remove, last.remove]
        self._watch_engine()
        for optimizer in self._optimizers:
            self._watch_optimizer(optimizer)

    def detach(self) -> None:
        """Take everything off."""
        while self._undo:
            self._undo.pop()()

    def _watch_engine(self) -> None:
        module: Any = torch.autograd
        plain = module._engine_run_backward
        buffer, backward = self._buffer, self._backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            buffer.enter(backward)
            try:
                return plain(*args, **kwargs)
            finally:
                buffer.exit(backward)

        module._engine_run_backward = run_backward

        def undo() -> None:
            module._engine_run_backward = plain

        self._undo.append(undo)

    def _watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        buffer, number = self._buffer, self._optimizer
        first = optimizer.register_step_pre_hook(lambda *_: _discard(buffer.enter(number)))
        last = optimizer.register_step_post_hook(lambda *_: _discard(buffer.exit(number)))
        plain = optimizer.zero_grad
        had = "zero_grad" in vars(optimizer)

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            buffer.enter(number)
            try:
                plain(*args, **kwargs)
            finally:
                buffer.exit(number)

        optimizer.zero_grad = zero_grad  # type: ignore[method-assign]

        def undo() -> None:
            if had:
                optimizer.zero_grad = plain  # type: ignore[method-assign]
            else:
                del optimizer.zero_grad

        self._undo += [first.remove, last.remove, undo]


def _discard(_: int) -> None:
    """Hooks must return None: anything else would replace the model's input or output."""
