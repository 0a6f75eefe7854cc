"""A transform that sleeps, and one behind it that writes down how long: a busy machine wakes late."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

PLANTED_S = 0.01
_took_s: list[float] = []  # of calls that are not written down yet


class Planted:
    """Sleeps and does nothing else, so that what it writes down is all that it took."""

    def __call__(self, image: Any) -> Any:
        begun = time.perf_counter()
        time.sleep(PLANTED_S)
        _took_s.append(time.perf_counter() - begun)
        return image


class WriteDown:
    """What the `Planted` in front of it took."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, image: Any) -> Any:
        with self.log.open("a") as file:
            file.write(f"{_took_s.pop()}\n")
        return image


def read_ms(log: Path) -> list[float]:
    """Of every call."""
    return [float(line) * 1e3 for line in log.read_text().split()]
