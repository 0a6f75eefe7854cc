"""Averages of weights that somebody wrote themselves: by what they hold, a copy of the model beside it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn

from detscope.zoo.contract import Stage

_UPDATES = ("update", "update_parameters", "update_params", "update_ema", "ema_update", "step")
_TORCH = "torch."
_NAMES = ("ema", "movingaverage", "weightaverage", "averagedmodel")


def find_averages(model: nn.Module) -> list[Stage]:
    """Methods that update a copy of the model, of objects that hold one or are called so."""
    found: dict[str, Stage] = {}
    for kind in _find_holders(model):
        for owner in kind.__mro__:
            if owner.__module__.startswith(_TORCH) or owner is object:
                break
            for name in _UPDATES:
                if isinstance(vars(owner).get(name), FunctionType):
                    target = f"{owner.__module__}:{owner.__qualname__}.{name}"
                    found.setdefault(target, Stage("ema", target))
    return list(found.values())


def _find_holders(model: nn.Module) -> Iterator[type]:
    """Classes of objects that keep a copy of the model, and classes whose names say that they average."""
    kinds: dict[type, None] = {}
    whole = type(model)
    for one in gc.get_objects():
        kind = type(one)  # never by `isinstance`: some objects run code of their own when asked
        if kind is whole and one is not model:
            kinds |= dict.fromkeys(_holders_of(one))
        elif issubclass(kind, type) and any(word in _plain_name(one) for word in _NAMES):
            kinds[one] = None
    yield from kinds


def _plain_name(kind: Any) -> str:
    name = kind.__name__
    # "Schema" has the letters, but no word of that name
    return "ema" if "EMA" in name or "Ema" in name else name.replace("_", "").lower().replace("ema", "")


def _holders_of(copy: nn.Module) -> Iterator[type]:
    for referrer in gc.get_referrers(copy):
        owners = gc.get_referrers(referrer) if type(referrer) is dict else [referrer]
        for owner in owners:
            own = getattr(owner, "__dict__", None)
            if type(own) is dict and not isinstance(owner, type) and any(one is copy for one in own.values()):
                yield type(owner)
