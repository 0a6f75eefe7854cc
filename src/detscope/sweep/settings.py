"""What a plan may say: the axes that trials differ in, and the settings that all of them share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from detscope.machine.limits import parse_size

STAGES = ("training", "inference")
# a label names a machine of a cluster: "jetson/cuda:0"
_DEVICE = re.compile(
    r"(?:(?P<label>[A-Za-z][\w.-]{0,62})/)?(?P<device>auto|cpu|mps|(?:cuda|xpu)(?::[0-9]{1,3})?)"
)
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class TrialLimits:
    """What a trial may use before it is ended."""

    time_s: float = 600.0  # from the moment its process is ready
    memory_bytes: int | None = None  # on top of what Python and torch take by themselves
    retries: int = 1  # of what can be luck: killed from outside, a lost loader worker or node
    start_s: float = 300.0  # for a process to start and import torch


@dataclass(frozen=True)
class MeasureRules:
    """How a trial measures."""

    target_interval: float = 0.05  # width of the median's 95 % interval over the median
    warmup_steps: int = 2
    min_steps: int = 6  # fewer have no interval
    max_steps: int = 200
    max_seconds: float = 10.0  # of measured steps


@dataclass(frozen=True)
class PlanKey:
    """An axis, or a key of a section: what it may be, in words for messages and as a check."""

    expected: str
    fits: Callable[[object], bool]
    default: object = None
    choices: tuple[str, ...] = ()


def _whole_key(low: int, high: int = _LARGEST, default: object = None) -> PlanKey:
    words = f"of at least {low}" if high == _LARGEST else f"of {low} to {high}"
    return PlanKey(
        f"a whole number {words}", lambda value: type(value) is int and low <= value <= high, default
    )


def _number_key(expected: str, high: float) -> PlanKey:
    return PlanKey(
        expected,
        lambda value: isinstance(value, int | float) and type(value) is not bool and 0 < value <= high,
    )


def _choice_key(*choices: str) -> PlanKey:
    """The first is the default."""
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return PlanKey(f"one of {listed}", lambda value: value in choices, choices[0], choices)


def _text_key(expected: str) -> PlanKey:
    return PlanKey(expected, lambda value: isinstance(value, str) and bool(value.strip()))


_SWITCH = PlanKey("true or false", lambda value: isinstance(value, bool), False)
AXES: Mapping[str, PlanKey] = {
    "network": _text_key("a model's name, a network folder or file.py:factory"),
    "stage": _choice_key(*STAGES),
    "image_size": _whole_key(32),
    "precision": _choice_key("fp32", "bf16", "fp16"),
    "device": PlanKey(
        '"auto", "cpu", "cuda:0" or "LABEL/cuda:0"',
        lambda value: isinstance(value, str) and _DEVICE.fullmatch(value) is not None,
        "auto",
    ),
    "num_workers": _whole_key(0, default=0),
    "prefetch_factor": _whole_key(1),
    "threads": _whole_key(1),
    "optimizer": _choice_key("sgd", "adamw"),
    "channels_last": _SWITCH,
    "seed": _whole_key(0, default=0),
    "variables": _choice_key("memory+latency", "memory", "latency"),
    "batch_size": _whole_key(1, default=1),
}
SECTIONS: Mapping[str, Mapping[str, PlanKey]] = {
    "sweep": {
        "name": _text_key("a text in quotes"),
        "store": _text_key("the name of a file"),
        "order": _choice_key("batch", "random"),
        "seed": _whole_key(0),
        "repetitions": _whole_key(1, 1000),
        "till_first_fail": _SWITCH,
        "isolation": _choice_key("process", "batch"),
    },
    "limits": {
        "time_s": _number_key("a number of seconds above 0", 10**7),
        "memory": PlanKey('a size such as "4GiB"', lambda value: parse_size(value) is not None),
        "retries": _whole_key(0, 10),
        "start_s": _number_key("a number of seconds above 0", 10**5),
    },
    "measure": {
        "target_interval": _number_key("a share above 0 and at most 1", 1),
        "warmup_steps": _whole_key(0, 1000),
        "min_steps": _whole_key(1, 100_000),
        "max_steps": _whole_key(1, 100_000),
        "max_seconds": _number_key("a number of seconds above 0", 10**6),
    },
}


def split_device(text: str) -> tuple[str | None, str]:
    """Label and device of `LABEL/cuda:0`; None where there is no label."""
    found = _DEVICE.fullmatch(text)
    if found is None:
        raise ValueError(f"not a device: {text!r}")
    return found["label"], found["device"]


def suggest_closest(word: object, known: list[str]) -> str:
    """`; did you mean X?`, or nothing."""
    text = str(word).lower().replace("-", "_")
    close = get_close_matches(text, known, n=1, cutoff=0.6)
    close = close or [name for name in known if len(text) >= 3 and text in name]
    return f"; did you mean {close[0]}?" if close else ""
