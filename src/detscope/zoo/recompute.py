"""Activation checkpointing: chosen modules of a model forget their activations and compute them again."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from detscope.errors import UsageError

_SUBCLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def recompute_in_backward(model: nn.Module, paths: Sequence[str]) -> None:
    """Let these modules keep only their inputs in training; results and gradients stay the same."""
    for path in paths:
        try:
            module = model.get_submodule(path)
        except AttributeError:
            known = [name for name, _ in model.named_modules() if name]
            close = difflib.get_close_matches(path, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"one of {', '.join(known[:4])}, ..."
            raise UsageError(f"training.recompute: the model has no module {path!r}", hint) from None
        # a class and not a forward on the instance: copies of the model, such as averaged weights, stay whole
        module.__class__ = _make_recomputing(type(module))


def _make_recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    """A class that computes again; made once per class, under the same name."""
    if kind in _SUBCLASSES.values():
        return kind
    if kind not in _SUBCLASSES:

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not (self.training and torch.is_grad_enabled()):
                return kind.forward(self, *args, **kwargs)
            return checkpoint(kind.forward, self, *args, use_reentrant=False, **kwargs)

        members = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _SUBCLASSES[kind] = type(kind.__name__, (kind,), members)
    return _SUBCLASSES[kind]
