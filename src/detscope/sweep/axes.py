"""What can be varied in a sweep: every axis with its values, its default and what it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

STAGES = ("training", "inference")
PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("sgd", "adamw")
VARIABLES = ("memory+latency", "memory", "latency")
# a label names a machine of a cluster: "jetson/cuda:0"
_DEVICE = re.compile(r"(?:(?P<label>[A-Za-z][\w.-]{0,62})/)?(?P<device>auto|cpu|cuda(?::[0-9]{1,3})?)")
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Axis:
    """One thing that trials differ in."""

    expected: str  # in words, for messages
    fits: Callable[[object], bool]
    default: object = None
    choices: tuple[str, ...] = ()


def _whole(least: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= _LARGEST


def _choice(choices: tuple[str, ...], default: str) -> Axis:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return Axis(f"one of {listed}", lambda value: value in choices, default, choices)


def _is_device(value: object) -> bool:
    return isinstance(value, str) and _DEVICE.fullmatch(value) is not None


AXES: Mapping[str, Axis] = {
    "network": Axis(
        "a model's name, a network folder or file.py:factory",
        lambda value: isinstance(value, str) and bool(value.strip()),
    ),
    "stage": _choice(STAGES, "training"),
    "image_size": Axis("a whole number of at least 32", _whole(32)),
    "precision": _choice(PRECISIONS, "fp32"),
    "device": Axis('"auto", "cpu", "cuda:0" or "LABEL/cuda:0"', _is_device, "auto"),
    "num_workers": Axis("a whole number of at least 0", _whole(0), 0),
    "prefetch_factor": Axis("a whole number of at least 1", _whole(1)),
    "threads": Axis("a whole number of at least 1", _whole(1)),
    "optimizer": _choice(OPTIMIZERS, "sgd"),
    "channels_last": Axis("true or false", lambda value: isinstance(value, bool), False),
    "seed": Axis("a whole number of at least 0", _whole(0), 0),
    "variables": _choice(VARIABLES, "memory+latency"),
    "batch_size": Axis("a whole number of at least 1", _whole(1), 1),
}


def split_device(text: str) -> tuple[str | None, str]:
    """Label and device of `LABEL/cuda:0`; None where there is no label."""
    found = _DEVICE.fullmatch(text)
    if found is None:
        raise ValueError(f"not a device: {text!r}")
    return found["label"], found["device"]


def closest(word: object, known: list[str]) -> str:
    """`; did you mean X?`, or nothing."""
    text = str(word).lower().replace("-", "_")
    close = get_close_matches(text, known, n=1, cutoff=0.6)
    close = close or [name for name in known if len(text) >= 3 and text in name]
    return f"; did you mean {close[0]}?" if close else ""
