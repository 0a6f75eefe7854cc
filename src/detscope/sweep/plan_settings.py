"""The parts of a plan that are the same for all of its trials: limits and how measuring is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from detscope.machine.sizes import parse_size


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
class Key:
    """A key of a section: what it may be."""

    expected: str
    fits: Callable[[object], bool]
    choices: tuple[str, ...] = ()


def _number(low: float, high: float) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int | float) and type(value) is not bool and low < value <= high


def _whole(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _choice(*choices: str) -> Key:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return Key(f"one of {listed}", lambda value: value in choices, choices)


SECTIONS: Mapping[str, Mapping[str, Key]] = {
    "sweep": {
        "name": Key("a text in quotes", _text),
        "store": Key("the name of a file", _text),
        "order": _choice("batch", "random"),
        "seed": Key("a whole number of at least 0", _whole(0, 2**31 - 1)),
        "repetitions": Key("a whole number of 1 to 1000", _whole(1, 1000)),
        "till_first_fail": Key("true or false", lambda value: isinstance(value, bool)),
        "isolation": _choice("process", "batch"),
    },
    "limits": {
        "time_s": Key("a number of seconds above 0", _number(0, 10**7)),
        "memory": Key('a size such as "4GiB"', lambda value: parse_size(value) is not None),
        "retries": Key("a whole number of 0 to 10", _whole(0, 10)),
        "start_s": Key("a number of seconds above 0", _number(0, 10**5)),
    },
    "measure": {
        "target_interval": Key("a share above 0 and at most 1", _number(0, 1)),
        "warmup_steps": Key("a whole number of 0 to 1000", _whole(0, 1000)),
        "min_steps": Key("a whole number of 1 to 100000", _whole(1, 100_000)),
        "max_steps": Key("a whole number of 1 to 100000", _whole(1, 100_000)),
        "max_seconds": Key("a number of seconds above 0", _number(0, 10**6)),
    },
}
