"""What is to be known of an optimizer and of a model's tensors: how many, and how they are updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

_NO_SETTINGS = ("params", "param_names", "name", "group_name")  # keys of a group that label it
# what torch does where nobody says `foreach` or `fused`, by the device of the parameters
_UNASKED = {"cpu": "loop", "cuda": "foreach", "xpu": "foreach"}


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """For `run.json`: its class, groups and tensors; what a stranger's does not tell is left out."""
    facts: dict[str, Any] = {"name": type(optimizer).__name__}
    try:
        groups = [dict(group) for group in optimizer.param_groups]
        tensors = [tensor for group in groups for tensor in group["params"]]
        facts["groups"] = len(groups)
        facts["different_groups"] = len({_settings_of(group) for group in groups})
        facts["tensors"] = len(tensors)
        facts["parameters"] = sum(tensor.numel() for tensor in tensors)
        ways = {_find_way(group) for group in groups}
        facts["way"] = ways.pop() if len(ways) == 1 else None
        facts["way_given"] = any(
            group.get(way) is not None for group in groups for way in ("foreach", "fused")
        )
    except Exception:  # whatever somebody's groups do when they are looked at is no matter of the loop
        return {"name": facts["name"]}
    return facts


def _settings_of(group: Mapping[str, Any]) -> frozenset[tuple[str, object]]:
    """What a group says of its parameters; an object that cannot be compared for free is equal to itself."""
    return frozenset(
        (key, value if isinstance(value, (bool, int, float, str, type(None))) else _compared(value))
        for key, value in group.items()
        if key not in _NO_SETTINGS
    )


def _compared(value: Any) -> object:
    plain = isinstance(value, (tuple, list)) and all(isinstance(one, (bool, int, float)) for one in value)
    return tuple(value) if plain else id(value)


def _find_way(group: Mapping[str, Any]) -> str | None:
    """One kernel for all tensors (fused), each operation for all (foreach), or tensor by tensor (loop)."""
    if group.get("fused"):
        return "fused"
    if "foreach" not in group or not group["params"]:
        return None  # none of torch's, or one that has no choice
    if group["foreach"] is not None:
        return "foreach" if group["foreach"] else "loop"
    return _UNASKED.get(group["params"][0].device.type)


def describe_tensors(model: nn.Module) -> dict[str, Any]:
    """For `run.json`: what an average of the weights has to keep, and whether there is a head without NMS."""
    kept = {id(one) for one in (*model.parameters(), *model.buffers()) if one.is_floating_point()}
    # a head that was fused for inference keeps the names of the branch that it dropped
    names = [name for module in model.modules() for name in list(module._modules.keys())]
    return {"tensors": len(kept), "one_to_one_head": any("one2one" in name for name in names)}
