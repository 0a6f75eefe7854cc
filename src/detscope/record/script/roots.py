"""Models that a script calls: which is the one that is trained, and what the others are."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detscope.record.foreign import frames_above
from detscope.record.model.borders import tensors_in
from detscope.record.optimizer_facts import describe_tensors
from detscope.zoo.contract import Observer, Stage

# wrappers that add nothing of their own to a model, and where they keep it
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "module",
    "AveragedModel": "module",
    "OptimizedModule": "_orig_mod",
}
_CLEARLY_MORE = 1.25  # times the work of the model so far that make another one the model
_FRAMES = 12  # to look at for somebody who called a model
_FRAMES_TO_CONSTRUCTOR = 30


class RootModel:
    """A module that is called by no other module."""

    def __init__(self, module: nn.Module, number: int) -> None:
        self._module = weakref.ref(module)
        self.number = number
        inner, self.wrappers = unwrap_model(module)
        self._inner = weakref.ref(inner)
        self.label = type(inner).__name__
        self.has_parameters = next(module.parameters(), None) is not None
        self.parameters: int | None = None  # counted after the first call: lazy ones have none before
        self.calls = self.calls_training = 0
        self.calls_in_training_steps = self.calls_in_evaluation_steps = 0  # steps in which it was called
        self.forward_ns = self.training_ns = 0
        self.repeated_ns = 0  # without the first call, which makes what later ones find ready
        self.called_by: str | None = None  # a module whose forward ran when this was called last looked at

    def is_part_of(self, other: RootModel) -> bool:
        """Whether it is the same model, or lies inside of the other."""
        inner, outer = self.inner, other.inner
        return inner is not None and outer is not None and any(part is inner for part in outer.modules())

    def lies_inside(self, other: RootModel) -> bool:
        """Whether it is a part of the other and not the whole of it."""
        return self.inner is not other.inner and self.is_part_of(other)

    @property
    def module(self) -> nn.Module | None:
        """The module itself, while it lives."""
        return self._module()

    @property
    def inner(self) -> nn.Module | None:
        """The model inside of wrappers."""
        return self._inner()

    def is_model_work(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a call is part of the forward phase: transforms and metrics that train nothing are not."""
        return self.has_parameters or any(tensor.requires_grad for tensor in tensors_in(arguments))

    def steps_called(self, kind: str) -> int:
        """In how many steps of training or of evaluation it was called."""
        return self.calls_in_training_steps if kind == "training" else self.calls_in_evaluation_steps

    @property
    def work_ns(self) -> float:
        """Time of all calls, the first taken for as long as the others are."""
        return self.forward_ns if self.calls < 2 else self.repeated_ns * self.calls / (self.calls - 1)

    def add_call(self, spent_ns: int, trains: bool) -> None:
        """A call has ended."""
        if self.calls:
            self.repeated_ns += spent_ns
        self.calls += 1
        self.forward_ns += spent_ns
        if trains:
            self.calls_training += 1
            self.training_ns += spent_ns
        if self.parameters is None:
            module = self.module
            self.parameters = 0 if module is None else sum(p.numel() for p in module.parameters())


class RootModels:
    """All roots by identity; one that is gone does not lend its number to another."""

    def __init__(self) -> None:
        self._roots: dict[int, RootModel] = {}
        self.all: list[RootModel] = []

    def is_tried_out(self, module: nn.Module) -> bool:
        """Whether a model that is still being made calls this part of it, as YOLOs do for their strides."""
        known = self._roots.get(id(module))
        if known is not None and known.module is module:
            return False
        return any(
            frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), nn.Module)
            for frame in frames_above(sys._getframe(1), _FRAMES_TO_CONSTRUCTOR)
        )

    def find_root(self, module: nn.Module) -> RootModel:
        """The root of this module, made at its first call."""
        root = self._roots.get(id(module))
        if root is None or root.module is not module:
            root = self._roots[id(module)] = RootModel(module, len(self.all))
            self.all.append(root)
        if root.calls & (root.calls - 1) == 0:  # now and then: a constructor may call what nobody calls later
            # a class whose `forward` called it: somebody called that method instead of the module
            owners = (
                frame.f_locals.get("self")
                for frame in frames_above(sys._getframe(1), _FRAMES)
                if frame.f_code.co_name == "forward"
                and (frame.f_back is None or frame.f_back.f_code.co_name != "_call_impl")
            )
            callers = (type(owner).__name__ for owner in owners if isinstance(owner, nn.Module))
            root.called_by = next(callers, None)
        return root

    def choose_model(self, trained: bool, so_far: RootModel | None = None) -> RootModel | None:
        """The root whose forward spans most, of those that are trained if any is.

        Without a training, `so_far` stays the model until another has clearly done more: two that do about
        as much would take turns.
        """
        alive = [root for root in self.all if root.inner is not None and root.has_parameters]
        if trained and any(root.training_ns for root in alive):
            alive = [root for root in alive if root.training_ns]
            most = max(alive, key=lambda root: root.training_ns)
        elif not alive:
            return None
        else:
            most = max(alive, key=lambda root: root.work_ns)
            if so_far in alive and most.work_ns < _CLEARLY_MORE * so_far.work_ns:
                most = so_far
        # a part that was called by itself at some time gives way to the whole
        wholes = [root for root in alive if root.work_ns >= most.repeated_ns and most.lies_inside(root)]
        return max(wholes, key=lambda root: root.work_ns, default=most)

    def describe_roots(self, model: RootModel | None) -> list[dict[str, Any]]:
        """What the script called, most expensive first, for `run.json`."""
        ordered = sorted(self.all, key=lambda root: -root.forward_ns)
        return [
            {
                "class": root.label,
                "role": name_role(root, model),
                "inside": list(root.wrappers),
                "parameters": root.parameters,
                "calls": root.calls,
                "calls_in_training_mode": root.calls_training,
                "forward_ms": root.forward_ns / 1e6,
            }
            for root in ordered[:20]
        ]


def name_role(root: RootModel, model: RootModel | None) -> str:
    """What a root is to the script, as far as its calls tell."""
    if root is model:
        return "model"
    if not root.has_parameters:
        return "loss or transform without parameters"
    if model is not None and root.lies_inside(model):
        return "part of the model, called directly"
    if root.calls_training:
        return "another trained model"
    same = model is not None and (root.label, root.parameters) == (model.label, model.parameters)
    if model is not None and root.inner is not None and root.inner is model.inner:
        return "the model, called directly"
    if root.calls_in_training_steps > 1:  # once: by somebody's constructor, on the way to the first step
        return "copy of the model that teaches it (no gradients)" if same else "teacher (no gradients)"
    return "copy of the model (averaged weights or similar), evaluated" if same else "another evaluated model"


def unwrap_model(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The model inside of wrappers, and their names, outermost first."""
    names: list[str] = []
    while True:
        name = type(module).__name__
        inner = getattr(module, _WRAPPERS[name], None) if name in _WRAPPERS else None
        if not isinstance(inner, nn.Module):
            return module, tuple(names)
        names.append(name)
        module = inner


@dataclass(frozen=True)
class ModelParts:
    """The parts of a model that get names."""

    family: str
    stages: tuple[Stage, ...]
    observers: tuple[Observer, ...]

    def describe_model(self, model: nn.Module, name: str) -> dict[str, Any]:
        """For `run.json`."""
        parameters = sum(p.numel() for p in model.parameters())
        facts = {"name": name, "family": self.family, "source": "script", "parameters": parameters}
        return facts | describe_tensors(model)


NO_PARTS = ModelParts("user", (), ())


def find_precision(module: nn.Module) -> str:
    """In which arithmetic a model is called."""
    parameter = next(module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = torch.float32 if parameter is None else parameter.dtype
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, str(dtype))
