"""A prediction beside what a run measured: how far apart, and whether the interval held it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from detscope.errors import InputError
from detscope.runs.reader import Run, read_json

FILE_NAME = "predicted.json"
VERSION = 1
Ends = tuple[float, float]


class Compared(TypedDict):
    """One figure, predicted and measured."""

    name: str
    unit: NotRequired[str | None]
    predicted: NotRequired[float | None]
    predicted_interval: NotRequired[list[float] | None]
    measured: NotRequired[float | None]
    measured_interval: NotRequired[list[float] | None]
    error: NotRequired[float | None]
    inside: NotRequired[bool | None]
    why: NotRequired[str | None]


class Predicted(TypedDict):
    """What `predicted.json` says, as far as it is computed with."""

    version: int
    compared: list[Compared]


def compared(
    name: str,
    unit: str,
    predicted: float | None,
    measured: float | None,
    *,
    interval: Ends | None = None,
    measured_interval: Ends | None = None,
    why: str = "",
) -> dict[str, Any]:
    """One figure: `error` is predicted over measured less one; `inside`: whether the interval held it.

    None where it cannot be told, with `why`.
    """
    known = predicted is not None and measured is not None and measured > 0
    return {
        "name": name,
        "unit": unit,
        "predicted": predicted,
        "predicted_interval": list(interval) if interval else None,
        "measured": measured,
        "measured_interval": list(measured_interval) if measured_interval else None,
        "error": predicted / measured - 1 if known and predicted is not None and measured else None,
        "inside": interval[0] <= measured <= interval[1] if interval and measured is not None else None,
        "why": why,
    }


def categories_beside(predicted: Mapping[str, float], measured: Mapping[str, float]) -> list[dict[str, Any]]:
    """Categories of a peak, largest first; one that only one side has is zero on the other."""
    names = sorted(
        {*predicted, *measured}, key=lambda name: -max(predicted.get(name, 0), measured.get(name, 0))
    )
    found = []
    for name in names:
        one, other = float(predicted.get(name, 0)), float(measured.get(name, 0))
        if one or other:
            found.append(compared(name, "bytes", one, other))
    return found


def read_predicted(run: Run) -> dict[str, Any] | None:
    """What `detscope predict RUN` left in the run; None where nobody asked."""
    path = run.folder / FILE_NAME
    if not path.exists():
        return None
    found = read_json(path, Predicted, "predict the run again, or remove the file")
    if found["version"] != VERSION:
        version = found["version"]
        raise InputError(f"{path} is of version {version}, this detscope reads {VERSION}", "predict it again")
    return found
