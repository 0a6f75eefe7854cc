"""The parts of a plan that are the same for all of its trials: limits and how measuring is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from detscope.machine.sizes import parse_size

# DOC detscope.sweep.settings: What can be varied in a sweep: every axis with its values, its default and what it means.
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


@dataclass(frozen=True)
class Limits:
    """What a trial may use before it is ended."""

    time_s: float = 600.0  # from the moment its process is ready
    memory_bytes: int | None = None  # on top of what Python and torch take by themselves
    retries: int = 1  # of what can be luck: killed from outside, a lost loader worker or node
    start_s: float = 300.0  # for a process to start and import torch


@dataclass(frozen=True)
class Measure:
    """How a trial measures."""

    target_interval: float = 0.05  # width of the median's 95 % interval over the median
    warmup_steps: int = 2
    min_steps: int = 6  # fewer have no interval
    max_steps: int = 200
    max_seconds: float = 10.0  # of measured steps


@dataclass(frozen=True)
class Axis:
    """A key of a section: what it may be."""

    expected: str
    fits: Callable[[object], bool]
    choices: tuple[str, ...] = ()


def _number(low: float, high: float) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int | float) and type(value) is not bool and low < value <= high


def _whole_between(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _one_of(*choices: str) -> Axis:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return Axis(f"one of {listed}", lambda value: value in choices, choices)


SECTIONS: Mapping[str, Mapping[str, Axis]] = {
    "sweep": {
        "name": Axis("a text in quotes", _text),
        "store": Axis("the name of a file", _text),
        "order": _one_of("batch", "random"),
        "seed": Axis("a whole number of at least 0", _whole_between(0, 2**31 - 1)),
        "repetitions": Axis("a whole number of 1 to 1000", _whole_between(1, 1000)),
        "till_first_fail": Axis("true or false", lambda value: isinstance(value, bool)),
        "isolation": _one_of("process", "batch"),
    },
    "limits": {
        "time_s": Axis("a number of seconds above 0", _number(0, 10**7)),
        "memory": Axis('a size such as "4GiB"', lambda value: parse_size(value) is not None),
        "retries": Axis("a whole number of 0 to 10", _whole_between(0, 10)),
        "start_s": Axis("a number of seconds above 0", _number(0, 10**5)),
    },
    "measure": {
        "target_interval": Axis("a share above 0 and at most 1", _number(0, 1)),
        "warmup_steps": Axis("a whole number of 0 to 1000", _whole_between(0, 1000)),
        "min_steps": Axis("a whole number of 1 to 100000", _whole_between(1, 100_000)),
        "max_steps": Axis("a whole number of 1 to 100000", _whole_between(1, 100_000)),
        "max_seconds": Axis("a number of seconds above 0", _number(0, 10**6)),
    },
}
