"""Global hooks: module calls, the autograd engine, optimizers, gradient scalers, copies to a device."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from detscope.record.foreign import Patches
from detscope.record.model.calls import torch_captures
from detscope.record.script.loading import watch_loaders
from detscope.record.script.tracker import Tracker

_PACKAGE = __name__.partition(".")[0]


def hide_from_compiler() -> None:
    """Have our functions run in Python where compiled code calls them; what they call may be compiled."""
    try:
        from torch._C._dynamo import eval_frame

        strategy = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        )
        for code in _codes():
            eval_frame.set_code_exec_strategy(code, strategy)
    except (ImportError, AttributeError, TypeError):  # another torch: its compiler looks at them itself
        return


def _codes() -> Iterator[CodeType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and isinstance(module, ModuleType):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    yield from _codes_of(value)


def _codes_of(value: Any) -> Iterator[CodeType]:
    if isinstance(value, (staticmethod, classmethod)):
        yield from _codes_of(value.__func__)
    elif isinstance(value, property):
        yield from _codes_of(value.fget)
    elif isinstance(value, FunctionType):
        yield from _nested(value.__code__)
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _codes_of(member)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


class Hooks:
    """Everything that is put on torch while a script is recorded."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._patches = Patches()
        self._handles: list[Any] = []

    def install(self, torch_is_new: bool = False) -> None:
        """Begin to listen; optimizers that were made before are known by looking at all objects there are."""
        for _ in range(0 if torch_is_new else _optimizers_alive()):
            self._tracker.pacer.makes_optimizer()
        tracker, patches = self._tracker, self._patches
        tracker.module_call = _module_call(tracker)
        patches.put(nn.Module, "__call__", tracker.module_call)
        patches.put(torch.autograd, "_engine_run_backward", _engine(tracker))
        self._handles += [
            register_optimizer_step_pre_hook(_before_step(tracker)),
            register_optimizer_step_post_hook(_after_step(tracker)),
        ]
        patches.put(torch.optim.Optimizer, "__init__", _optimizer_made(tracker))
        patches.put(torch.amp.GradScaler, "step", _scaler_step(tracker))
        patches.put(torch.amp.GradScaler, "scale", _scaler_scale(tracker))
        for owner, name in (
            (torch.optim.Optimizer, "zero_grad"),
            (nn.Module, "zero_grad"),
            (torch.nn.utils, "clip_grad_norm_"),
            (torch.nn.utils, "clip_grad_value_"),
            (torch.nn.utils.clip_grad, "clip_grad_norm_"),
            (torch.nn.utils.clip_grad, "clip_grad_value_"),
        ):
            patches.put(owner, name, _phase_call(getattr(owner, name), tracker.optimizer_phase))
        for name in ("_prepare_profiler", "_enable_profiler"):
            plain = vars(torch.autograd.profiler)[name]
            patches.put(torch.autograd.profiler, name, _profiler_call(plain, tracker))
        if vars(torch.autograd)["_profiler_enabled"]():
            tracker.recording.make_way()
        watch_loaders(patches, tracker.batches)
        hide_from_compiler()
        tracker.recording.ranks.attach(patches.put, tracker.phase_now)
        if torch.cuda.is_available():  # elsewhere nothing has to travel
            for name in ("to", "cuda"):
                patches.put(torch.Tensor, name, _copy(getattr(torch.Tensor, name), tracker))

    def remove(self) -> None:
        """Listen no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.undo()


def _optimizers_alive() -> int:
    return sum(issubclass(type(one), torch.optim.Optimizer) for one in gc.get_objects())


def _module_call(tracker: Tracker) -> Callable[..., Any]:
    """Calls of modules while no model is known yet; then its probes do this too."""
    plain: Callable[..., Any] = nn.Module.__call__

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or tracker.inside or not tracker.active or torch_captures(self):
            return plain(self, *args, **kwargs)
        return tracker.root_call(plain, plain, self, args, kwargs)

    return call


def _engine(tracker: Tracker) -> Callable[..., Any]:
    plain: Callable[..., Any] = vars(torch.autograd)["_engine_run_backward"]

    @functools.wraps(plain)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not tracker.active:
            return plain(*args, **kwargs)
        return tracker.backward(plain, args, kwargs)

    return run_backward


def _before_step(tracker: Tracker) -> Callable[..., None]:
    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling():
            tracker.enter_optimizer(optimizer, sys._getframe(1))

    return before


def _after_step(tracker: Tracker) -> Callable[..., None]:
    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling():
            tracker.exit_optimizer(optimizer)

    return after


def _optimizer_made(tracker: Tracker) -> Callable[..., None]:
    plain = torch.optim.Optimizer.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        tracker.recording.optimizers_built += 1
        tracker.pacer.makes_optimizer()
        plain(self, *args, **kwargs)

    return init


def _scaler_step(tracker: Tracker) -> Callable[..., Any]:
    """A scaler's step is one of the optimizer, also where it finds infinities and leaves it out."""
    plain: Callable[..., Any] = torch.amp.GradScaler.step

    @functools.wraps(plain)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not tracker.enter_optimizer(optimizer, sys._getframe()):
            return plain(self, optimizer, *args, **kwargs)
        before = tracker.inner_steps
        try:
            return plain(self, optimizer, *args, **kwargs)
        finally:
            tracker.exit_optimizer(optimizer, skipped=tracker.inner_steps == before)

    return step


def _scaler_scale(tracker: Tracker) -> Callable[..., Any]:
    """Remembers of what a scaled loss was made: the script means that one."""
    plain: Callable[..., Any] = torch.amp.GradScaler.scale

    @functools.wraps(plain)
    def scale(self: Any, outputs: Any) -> Any:
        made = plain(self, outputs)
        if not is_compiling() and tracker.active:
            tracker.losses.scaled(outputs, made)
        return made

    return scale


def _profiler_call(plain: Callable[..., Any], tracker: Tracker) -> Callable[..., Any]:
    """A profiler begins; one that is not ours goes first."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if tracker.active and not tracker.crossing:
            tracker.look(tracker.recording.make_way)
        return plain(*args, **kwargs)

    return call


def _phase_call(plain: Callable[..., Any], begin: Callable[[], Callable[[], None]]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return plain(*args, **kwargs)
        end = begin()
        try:
            return plain(*args, **kwargs)
        finally:
            end()

    return call


def _copy(plain: Callable[..., Any], tracker: Tracker) -> Callable[..., Any]:
    """Copies of a host's tensor by the loop itself; inside of a model they are the model's work."""

    @functools.wraps(plain)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or tracker.inside or not tracker.active or not self.is_cpu:
            return plain(self, *args, **kwargs)
        end = tracker.transfer()
        try:
            return plain(self, *args, **kwargs)
        finally:
            end()

    return copy
