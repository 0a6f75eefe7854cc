"""Which model a name means: a detector of the zoo, a classifier of torchvision or timm, one's own."""

from __future__ import annotations

import difflib
import warnings
from functools import cache

from detscope.errors import UsageError
from detscope.zoo.networks.network import Base

_TIMM = "timm/"


def find_base(name: str) -> Base:
    """The model of this name; where torchvision and timm share one, torchvision's is meant."""
    if ":" in name:
        from detscope.zoo.user import card_of

        card_of(name)  # a wrong path is an error already here
        return Base(name, "user", "detector")
    if name.startswith(_TIMM):
        return _timm_base(name.removeprefix(_TIMM))
    detector = _detector_named(name)
    if detector is not None:
        return Base(detector, "zoo", "detector")
    if name in torchvision_classifiers():
        return Base(name, "torchvision", "classifier")
    if _is_timm(name):
        return Base(name, "timm", "classifier")
    raise _unknown(name)


@cache
def torchvision_classifiers() -> tuple[str, ...]:
    """Names of all image classifiers of torchvision."""
    from torchvision import models

    return tuple(models.list_models(module=models))


def timm_models() -> list[str]:
    """Names of all models of timm."""
    import timm

    return list(timm.list_models())


def _is_timm(name: str) -> bool:
    from detscope.zoo.families.efficientdet import quiet_effdet

    with quiet_effdet(), warnings.catch_warnings():
        import timm

        return bool(timm.is_model(name))


def _timm_base(name: str) -> Base:
    if not _is_timm(name):
        close = difflib.get_close_matches(name, timm_models(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(_TIMM + one for one in close)}?" if close else ""
        raise UsageError(f"timm has no model named {name!r}", hint)
    return Base(name, "timm", "classifier")


def _detector_named(name: str) -> str | None:
    from detscope.zoo.registry import get_card

    try:
        return get_card(name).name
    except UsageError:
        return None


def _unknown(name: str) -> UsageError:
    from detscope.zoo.registry import list_cards

    known = [*(card.name for card in list_cards()), *torchvision_classifiers(), *timm_models()]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "a classifier of torchvision or timm"
    return UsageError(f"no network named {name!r}", f"{hint} `detscope models` lists the detectors")
