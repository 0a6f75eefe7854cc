"""Phases of a step, found from outside: root forward, the autograd engine's entry, optimizer steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from detscope.record.foreign import Patches, WeakObjects
from detscope.record.model.calls import CallListener, put_around, step_recorded_here
from detscope.record.model.last_gradient import hear_last_gradient
from detscope.record.model.named_parts import NamedParts, optimizer_part
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
        parts: NamedParts,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._buffer = buffer
        self._root = weakref.ref(root)
        self._optimizers = WeakObjects(optimizers)
        self._forward = nodes.phase_node("forward").number
        self._backward = nodes.phase_node("backward").number
        self._optimizer = nodes.phase_node("optimizer").number
        self._patches = Patches()
        self._handles: list[Any] = []
        self._on = False
        self.hear_arguments: Callable[[Any], object] = lambda _given: None  # of the root

    def attach(self) -> None:
        """Begin to watch; what is put on torch stays there until the end."""
        self._on = True
        if self._handles:
            return
        put_around(self._patches, torch.autograd, "_engine_run_backward", self._run_backward)

        steps: list[AbstractContextManager[None]] = []

        def enter_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_dynamo_compiling() and self._on and optimizer in self._optimizers:
                self._buffer.enter_node(self._optimizer)
                steps.append(self._parts.hear_part("step", f"{type(optimizer).__name__}.step()"))

        def exit_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_dynamo_compiling() and self._on and optimizer in self._optimizers:
                if steps:
                    steps.pop().__exit__(None, None, None)
                self._buffer.exit_node(self._optimizer)

        self._handles += [
            register_optimizer_step_pre_hook(enter_step),
            register_optimizer_step_post_hook(exit_step),
        ]
        for name in ("unscale_", "step", "update"):
            put_around(self._patches, torch.amp.GradScaler, name, self._scale_step)
        for kind in {
            next(kind for kind in type(optimizer).__mro__ if "zero_grad" in vars(kind))
            for optimizer in self._optimizers
        }:
            put_around(self._patches, kind, "zero_grad", self._zero_grad)
        # not where they are defined: whoever holds one since before can still pickle it
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            put_around(self._patches, torch.nn.utils, name, self._clip_gradients)

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

    def begin_call(self, module: nn.Module, given: Any) -> Callable[[], object] | None:
        """A module is called by no other that is recorded: the root's call is the forward phase."""
        if not self._on or module is not self._root():
            return None
        self.hear_arguments(given)
        self._buffer.enter_node(self._forward)
        return self._end_forward

    def _end_forward(self) -> None:
        ended_ns = self._buffer.exit_node(self._forward)
        if torch.is_grad_enabled():
            self._parts.end_forward(ended_ns)

    def _run_backward(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._on:
            return plain(*args, **kwargs)
        if not self.calls.inside:
            self._parts.begin_backward(args[0])
        self._buffer.enter_node(self._backward)
        heard: list[Any] = []
        if not self.calls.in_backward:
            heard.append(hear_last_gradient(self._buffer, *args[:1]))
            heard.append(self._parts.hear_first_node(args[0]))
        self.calls.in_backward += 1
        try:
            return plain(*args, **kwargs)
        finally:
            self.calls.in_backward -= 1
            for handle in heard:
                if handle is not None:
                    handle.remove()
            self._buffer.exit_node(self._backward)

    def _scale_step(self, plain: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """What a scaler does before, around and after an optimizer's step belongs to it."""
        others = [one for one in args[:1] if isinstance(one, torch.optim.Optimizer)]
        known = scaler.is_enabled() and all(one in self._optimizers for one in others)
        return self._call_in_phase(known, plain, scaler, *args, **kwargs)

    def _zero_grad(self, plain: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return self._call_in_phase(optimizer in self._optimizers, plain, optimizer, *args, **kwargs)

    def _clip_gradients(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._call_in_phase(step_recorded_here(self.calls), plain, *args, **kwargs)

    def _call_in_phase(self, known: bool, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._on or not known:
            return plain(*args, **kwargs)
        self._buffer.enter_node(self._optimizer)
        try:
            with self._parts.hear_part(*optimizer_part(plain)):
                return plain(*args, **kwargs)
        finally:
            self._buffer.exit_node(self._optimizer)
