"""Models that a script calls: which is the one that is trained, and what the others are."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from detscope.record.foreign import frames_above
from detscope.record.model.borders import tensors_in
from detscope.record.optimizer_facts import describe_tensors
from detscope.zoo.contract import Observer, Stage
from detscope.zoo.structure import count_parameters

# wrappers that add nothing of their own to a model, and where they keep it
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "module",
    "AveragedModel": "module",
    "OptimizedModule": "_orig_mod",
}
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")  # keep weights as packed objects
_CONSTANTS = ("prim::Constant", "prim::ConstantMKLDNNTensor")  # of programs, as they are and for inference
_FEW = 64  # numbers that mean and deviation of channels, or a small kernel, have at most
_CLEARLY_MORE = 1.25  # times the work of the model so far that make another one the model
_FRAMES = 12  # to look at for somebody who called a model
_FRAMES_TO_CONSTRUCTOR = 30
_TRIED = 8  # calls of what trains nothing, to see whether it transforms images


class RootModel:
    """A module that is called by no other module."""

    def __init__(self, module: nn.Module, number: int) -> None:
        self._module = weakref.ref(module)
        self.number = number
        inner, self.wrappers = unwrap_model(module)
        self._inner = weakref.ref(inner)
        self.label = name_model(inner)
        self.has_weights = next(module.parameters(), None) is not None or holds_weights(module)
        self.parameters: int | None = None  # counted after the first call: lazy ones have none before
        self.met = 0  # calls that have begun, also those that are no part of forward
        self.may_transform = True  # such calls may turn images into others
        self._gave_none = 0  # such calls in a row that gave no images
        self.calls = self.calls_training = 0
        self.calls_in_training_steps = self.calls_in_evaluation_steps = 0  # steps in which it was called
        self.forward_ns = self.training_ns = 0
        self.repeated_ns = 0  # without the first call, which makes what later ones find ready
        self.called_by: str | None = None  # a method of a module that was called instead of the module
        self._holder: weakref.ref[nn.Module] | None = None  # that module, where it holds this one
        self.parts: list[RootModel] = []  # of a module that was never called itself

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
        return self.has_weights or any(tensor.requires_grad for tensor in tensors_in(arguments))

    def count_transform(self, gave_images: bool, called_model: bool) -> None:
        """Such a call has ended: who calls a model in it, or never gives images, is no transform."""
        self._gave_none = 0 if gave_images else self._gave_none + 1
        self.may_transform = not called_model and self._gave_none < _TRIED

    def find_holder(self, frame: FrameType) -> None:
        """It is called: perhaps by a method of a module that holds it, and that is called as no module."""
        self.called_by, module = None, self.module
        for above in frames_above(frame, _FRAMES):  # the outermost stays
            method = above.f_code
            holder = above.f_locals.get("self") if method.co_varnames[:1] == ("self",) else None
            if not isinstance(holder, nn.Module) or holder is module or method.co_name == "__init__":
                continue
            if any(part is module for part in holder.modules()):
                self._holder = weakref.ref(holder)
                self.called_by = f"{type(holder).__name__}.{method.co_name}"

    @property
    def holder(self) -> nn.Module | None:
        """The module whose method called it, while it lives."""
        return None if self._holder is None else self._holder()

    @property
    def is_forward_called(self) -> bool:
        """Whether somebody called the `forward` of a module instead of the module."""
        return self.called_by is not None and self.called_by.endswith(".forward")

    def steps_called(self, kind: str) -> int:
        """In how many steps of training or of evaluation it, or a part that stands for it, was called."""
        own = self.calls_in_training_steps if kind == "training" else self.calls_in_evaluation_steps
        return max([own, *(part.steps_called(kind) for part in self.parts)])

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
            with torch._C.DisableTorchFunction():
                self.parameters = 0 if module is None else count_parameters(module)


class RootModels:
    """All roots by identity; one that is gone does not lend its number to another."""

    def __init__(self) -> None:
        self._roots: dict[int, RootModel] = {}
        self.all: list[RootModel] = []

    def is_tried_out(self, module: nn.Module) -> bool:
        """Whether this is a part of a model that is still being made, as YOLOs call theirs for their strides.

        Or the way to a weight that is computed: whoever reads one calls it.
        """
        known = self._roots.get(id(module))
        if known is not None and known.module is module:
            return False
        if isinstance(module, ParametrizationList):
            return True
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
        if root.met & (root.met - 1) == 0:  # now and then: a constructor may call what nobody calls later
            root.find_holder(sys._getframe(1))
        root.met += 1
        return root

    def choose_model(self, trained: bool, so_far: RootModel | None = None) -> RootModel | None:
        """The root whose forward spans most, of those that are trained if any is.

        Without a training, `so_far` stays the model until another has clearly done more: two that do about
        as much would take turns.
        """
        alive = [root for root in self.all if root.inner is not None and root.has_weights]
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
        if wholes:
            return max(wholes, key=lambda root: root.work_ns)
        return self._find_uncalled(most, alive) or most

    def _find_uncalled(self, most: RootModel, alive: list[RootModel]) -> RootModel | None:
        """A module whose methods call several of the roots and that is called as no module itself."""
        holder = most.holder
        if holder is None:
            return None
        inside = {id(part) for part in holder.modules() if part is not holder}
        parts = [root for root in alive if id(root.inner) in inside]
        if len(parts) < 2:  # a wrapper of one model
            return None
        root = self._roots.get(id(holder))
        if root is None or root.module is not holder:
            root = self._roots[id(holder)] = RootModel(holder, len(self.all))
            self.all.append(root)
        if not root.calls:
            root.parts, root.called_by, root.parameters = parts, most.called_by, count_parameters(holder)
        return root

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
    if not root.has_weights:
        return "loss or transform without weights"
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


def holds_weights(module: nn.Module) -> bool:
    """Whether a module without parameters is a model all the same: quantised, frozen, its weights buffers.

    Transforms and metrics have no layer of several numbers by several, or a single one.
    """
    if isinstance(module, torch.jit.ScriptModule) and any(one.ndim > 1 for one in _list_constants(module)):
        return True
    layers = 0
    for part in module.modules():
        weights = [one for one in part.buffers(recurse=False) if one.ndim > 1 and one.shape.numel() > _FEW]
        layers += bool(weights) or type(part).__module__.startswith(_QUANTISED)
    return layers > 1


def _list_constants(program: Any) -> list[torch.Tensor]:
    """Tensors that a frozen program holds in its code."""
    try:
        graph = program.graph
    except RuntimeError:  # one without a forward
        return []
    nodes = [one for kind in _CONSTANTS for one in graph.findAllNodes(kind)]
    named = [one for one in nodes if "value" in one.attributeNames()]
    return [one.t("value") for one in named if one.kindOf("value") == "t"]


def name_model(model: nn.Module) -> str:
    """Its class; of a program of TorchScript that which it was made from."""
    made_from = model.original_name if isinstance(model, torch.jit.ScriptModule) else ""
    return str(made_from) or type(model).__name__


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
        parameters = count_parameters(model)
        facts = {"name": name, "family": self.family, "source": "script", "parameters": parameters}
        return facts | describe_tensors(model)


NO_PARTS = ModelParts("user", (), ())


def is_training(module: nn.Module) -> bool:
    """Whether it is in training mode; a frozen program does not know such a thing."""
    return bool(getattr(module, "training", False))


def find_precision(module: nn.Module) -> str:
    """In which arithmetic a model is called."""
    parameter = next(module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = torch.float32 if parameter is None else parameter.dtype
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, str(dtype))
