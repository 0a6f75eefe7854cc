"""Averages of weights that somebody wrote themselves: by the copy of the model that they hold, or by name."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn

from detscope.record.model.borders import attributes_of
from detscope.zoo.contract import Stage

_UPDATES = ("update", "update_parameters", "update_params", "update_ema", "ema_update")
_NAMED = re.compile(r"EMA(?![a-z])|Ema(?![a-z])|MovingAverage|WeightAverag|AverageModel|ModelAverag")
_MOST_COPIES = 3  # of the model, whose holders are looked for: each time through all objects there are


def find_averages(model: nn.Module) -> list[Stage]:
    """Methods that update a copy of the model: of objects that hold one, of classes that are called so."""
    found: dict[str, Stage] = {}
    for kind in _find_keepers(model):
        wanted = (*_UPDATES, "step") if _NAMED.search(kind.__name__) else _UPDATES
        for owner in kind.__mro__:
            if owner.__module__.startswith("torch.") or owner is object:
                break
            for name in wanted:
                if isinstance(vars(owner).get(name), FunctionType):
                    target = f"{owner.__module__}:{owner.__qualname__}.{name}"
                    found.setdefault(target, Stage("ema", target))
    return list(found.values())


def _find_keepers(model: nn.Module) -> list[type]:
    """Classes of objects that keep a copy of the model, and classes whose names say that they average."""
    own = {id(part) for part in model.modules()}
    size = _count_numbers(model)
    copies: list[Any] = []
    kinds: dict[type, None] = {}
    for one in gc.get_referrers(type(model)):  # its objects among them
        # never by `isinstance`: some objects run code of their own when asked
        if type(one) is type(model) and id(one) not in own and _count_numbers(one) == size:
            copies.append(one)
    kinds |= dict.fromkeys(kind for kind in list_classes(object) if _NAMED.search(kind.__name__))
    for copy in copies[:_MOST_COPIES]:
        kinds |= dict.fromkeys(_keepers_of(copy))
    return list(kinds)


def list_classes(base: type) -> list[type]:
    """A class and all that are derived from it; much sooner than by looking at all objects there are."""
    found: dict[type, None] = {base: None}
    waiting = [base]
    while waiting:
        below: list[type] = type.__subclasses__(waiting.pop())
        for kind in below:
            if kind not in found:
                found[kind] = None
                waiting.append(kind)
    return list(found)


def _count_numbers(model: nn.Module) -> int | None:
    try:
        return sum(parameter.numel() for parameter in model.parameters())
    except Exception:  # one that is half made, or whose parameters are not there yet
        return None


def _keepers_of(copy: nn.Module) -> Iterator[type]:
    for referrer in gc.get_referrers(copy):
        for owner in gc.get_referrers(referrer) if type(referrer) is dict else [referrer]:
            kind = type(owner)
            if any(one is copy for one in attributes_of(owner, kind).values()):
                yield kind
