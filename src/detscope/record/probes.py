"""Which modules, methods and library functions are probed, by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from torch import nn


def resolve_target(root: nn.Module, target: str) -> tuple[str, Any, str]:
    """What a target names: its kind ("module", "method", "function"), its owner, and its path or name."""
    if ":" in target:
        library, name = target.split(":", 1)
        return "function", importlib.import_module(library), name
    if target.endswith("()"):
        path, _, name = target[:-2].rpartition(".")
        owner = root.get_submodule(path)
        getattr(owner, name)
        return "method", owner, name
    return "module", root.get_submodule(target), target


def select_modules(root: nn.Module, which: str) -> list[tuple[str, nn.Module]]:
    """Modules to record by `--modules`: all, leaf, none, or down to a depth; the root is always first."""
    named = [(path, module) for path, module in root.named_modules() if path]
    if which == "leaf":
        named = [(path, module) for path, module in named if not any(module.children())]
    elif which == "none":
        named = []
    elif which != "all":
        depth = int(which)
        named = [(path, module) for path, module in named if path.count(".") < depth]
    return [("", root), *named]


def count_parameters(modules: Sequence[tuple[str, nn.Module]]) -> dict[str, int]:
    """Parameters of each module with all that is below it."""
    return {path: sum(p.numel() for p in module.parameters()) for path, module in modules}
