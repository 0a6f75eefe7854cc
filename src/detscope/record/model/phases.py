"""Phases of a step, found from outside: root forward, the autograd engine's entry, optimizer steps."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from detscope.record.foreign import Patches, WeakObjects
from detscope.record.model.calls import CallListener
from detscope.record.steps.events import EventBuffer
from detscope.record.steps.nodes import NodeTable


class PhaseProbes(CallListener):
    """Listens to a model and its optimizers by identity, in torch's global places; nothing is put on them."""

    def __init__(
        self,
        buffer: EventBuffer,
        nodes: NodeTable,
        root: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> None:
        super().__init__()
        self._buffer = buffer
        self._root = weakref.ref(root)
        self._optimizers = WeakObjects(optimizers)
        self._forward = nodes.phase_node("forward").number
        self._backward = nodes.phase_node("backward").number
        self._optimizer = nodes.phase_node("optimizer").number
        self._patches = Patches()
        self._handles: list[Any] = []
        self._on = False

    def attach(self) -> None:
        """Begin to watch."""
        if not self._handles:
            self._install_hooks()
        self._on = True

    def detach(self) -> None:
        """Watch no more, for now."""
        self._on = False

    def remove(self) -> None:
        """Put everything back for good."""
        self._on = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.undo()

    def begin_call(self, module: nn.Module) -> Callable[[], object] | None:
        """A module is called by no other that is recorded: the root's call is the forward phase."""
        if not self._on or module is not self._root():
            return None
        buffer, number = self._buffer, self._forward
        buffer.enter_node(number)
        return lambda: buffer.exit_node(number)

    def _install_hooks(self) -> None:
        self._patches.put(torch.autograd, "_engine_run_backward", self._make_engine())
        buffer, number = self._buffer, self._optimizer

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_dynamo_compiling() and self._on and optimizer in self._optimizers:
                buffer.enter_node(number)

        def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_dynamo_compiling() and self._on and optimizer in self._optimizers:
                buffer.exit_node(number)

        self._handles += [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]
        classes = {
            next(kind for kind in type(optimizer).__mro__ if "zero_grad" in vars(kind))
            for optimizer in self._optimizers
        }
        for kind in classes:
            self._patches.put(kind, "zero_grad", self._make_zero_grad(vars(kind)["zero_grad"]))

    def _make_engine(self) -> Callable[..., Any]:
        plain: Callable[..., Any] = vars(torch.autograd)["_engine_run_backward"]
        buffer, number, calls = self._buffer, self._backward, self.calls

        @functools.wraps(plain)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return plain(*args, **kwargs)
            buffer.enter_node(number)
            calls.in_backward += 1
            try:
                return plain(*args, **kwargs)
            finally:
                calls.in_backward -= 1
                buffer.exit_node(number)

        return run_backward

    def _make_zero_grad(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        buffer, number = self._buffer, self._optimizer

        @functools.wraps(plain)
        def zero_grad(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or not self._on or self_ not in self._optimizers:
                return plain(self_, *args, **kwargs)
            buffer.enter_node(number)
            try:
                return plain(self_, *args, **kwargs)
            finally:
                buffer.exit_node(number)

        return zero_grad
