"""Global hooks: module calls, the autograd engine, optimizers, gradient scalers, copies to a device."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.utils import clip_grad
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from detscope.machine.accelerator import Accelerator
from detscope.record.foreign import Patches, drop_own_frames
from detscope.record.model.calls import put_around, torch_captures
from detscope.record.model.named_parts import optimizer_part
from detscope.record.own_code import hide_from_compiler, pass_over_in_warnings
from detscope.record.script.loading import watch_loaders
from detscope.record.script.tracker import OPTIMIZER, TRANSFER, ScriptTracker
from detscope.record.transforms.timer import end_timing

CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


class Hooks:
    """Everything that is put on torch while a script is recorded."""

    def __init__(self, tracker: ScriptTracker) -> None:
        self._tracker = tracker
        self._patches = Patches()
        self._handles: list[Any] = []

    def install(self, torch_is_new: bool = False) -> None:
        """Begin to listen; optimizers that were made before are known by looking at all objects there are."""
        tracker, patches = self._tracker, self._patches
        pass_over_in_warnings()
        for one in () if torch_is_new else _list_optimizers():
            tracker.add_optimizer(one)
        tracker.module_call = _make_module_call(tracker)
        patches.put(nn.Module, "__call__", tracker.module_call)
        put_around(patches, torch.autograd, "_engine_run_backward", tracker.run_backward)
        self._handles += [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        put_around(patches, torch.optim.Optimizer, "__init__", self._make_optimizer)
        put_around(patches, torch.amp.GradScaler, "step", self._step_scaled)
        put_around(patches, torch.amp.GradScaler, "scale", self._scale_loss)
        for name in ("unscale_", "update"):
            put_around(patches, torch.amp.GradScaler, name, self._call_scaler)
        for owner, names in (
            (torch.optim.Optimizer, ("zero_grad",)),
            (nn.Module, ("zero_grad",)),
            (clip_grad, CLIPPING),
        ):
            for name in names:
                put_around(patches, owner, name, self._call_in_optimizer_phase)
        for name in CLIPPING:  # the same under both names: what is pickled by one is found under the other
            patches.put(torch.nn.utils, name, vars(clip_grad)[name])
        for name in ("_prepare_profiler", "_enable_profiler"):
            put_around(patches, torch.autograd.profiler, name, self._begin_profiler)
        if vars(torch.autograd)["_profiler_enabled"]():
            tracker.recording.make_way()
        watch_loaders(patches, tracker.batches)
        hide_from_compiler()
        tracker.recording.ranks.attach_watch(patches, tracker.find_phase)
        tracker.recording.device_found = self._watch_copies

    def remove(self) -> None:
        """Listen no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.undo()
        end_timing()

    def _watch_copies(self, _accelerator: Accelerator) -> None:
        """A model is on an accelerator: batches travel there. Asking before would have started it."""
        for name in ("to", "cuda", "xpu"):
            plain = getattr(torch.Tensor, name, None)
            if plain is not None:
                self._patches.put(torch.Tensor, name, _make_copy(plain, self._tracker))

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling():
            self._tracker.enter_optimizer(optimizer, sys._getframe(1))

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling():
            self._tracker.exit_optimizer(optimizer)

    def _make_optimizer(self, plain: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self._tracker.recording.optimizers_built += 1
        self._tracker.add_optimizer(args[0])
        plain(*args, **kwargs)

    def _step_scaled(
        self, plain: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """A scaler's step is one of the optimizer, also where it finds infinities and leaves it out."""
        tracker = self._tracker
        if not tracker.enter_optimizer(optimizer, sys._getframe(), optimizer_part(plain)):
            return plain(scaler, optimizer, *args, **kwargs)
        before = tracker.inner_steps
        try:
            return plain(scaler, optimizer, *args, **kwargs)
        finally:
            tracker.exit_optimizer(optimizer, skipped=tracker.inner_steps == before)

    def _call_scaler(self, plain: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """What a scaler does to gradients and to itself is the optimizer's; a disabled one does nothing."""
        if not scaler.is_enabled():
            return plain(scaler, *args, **kwargs)
        return self._call_in_optimizer_phase(plain, scaler, *args, **kwargs)

    def _scale_loss(self, plain: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        """Remembers of what a scaled loss was made: the script means that one."""
        made = plain(scaler, outputs)
        if self._tracker.active:
            self._tracker.losses.note_scaled(outputs, made)
        return made

    def _begin_profiler(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A profiler begins; one that is not ours goes first."""
        tracker = self._tracker
        if tracker.active and not tracker.crossing:
            tracker.look_safely(tracker.recording.make_way)
        return plain(*args, **kwargs)

    def _call_in_optimizer_phase(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        end = self._tracker.begin_phase(OPTIMIZER, optimizer_part(plain))
        try:
            return plain(*args, **kwargs)
        finally:
            end()


def _list_optimizers() -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


def _make_module_call(tracker: ScriptTracker) -> Callable[..., Any]:
    """Calls of modules while no model is known yet; then its probes do this too."""
    plain: Callable[..., Any] = nn.Module.__call__

    @functools.wraps(plain)
    def call_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return plain(self, *args, **kwargs)
        try:
            if tracker.inside or not tracker.active or torch_captures(self):
                return plain(self, *args, **kwargs)
            return tracker.call_root(plain, plain, self, args, kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    return call_module


def _make_copy(plain: Callable[..., Any], tracker: ScriptTracker) -> Callable[..., Any]:
    """Copies of a host's tensor by the loop itself; inside of a model they are the model's work."""

    @functools.wraps(plain)
    def copy_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or tracker.inside or not tracker.active or not self.is_cpu:
            return plain(self, *args, **kwargs)
        end = tracker.begin_phase(TRANSFER)
        try:
            return plain(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            end()

    return copy_tensor
