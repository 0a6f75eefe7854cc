"""From the device a user named to the device the loop will use, or an error before any work."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

from detscope.errors import MachineError, UsageError

if TYPE_CHECKING:
    from types import ModuleType

_CUDA = re.compile(r"cuda(?::(\d{1,3}))?")


def resolve_device(name: str) -> str:
    """ "cpu" or "cuda:N" for "auto", "cpu", "cuda" or "cuda:N"; imports torch unless it is "cpu".

    A device that is asked for and absent raises MachineError; "auto" takes what there is.
    """
    if name == "cpu":
        return name
    if name == "auto":
        return "cuda:0" if _cuda_count()[0] else "cpu"
    asked = _CUDA.fullmatch(name)
    if asked is None:
        raise UsageError(f"unknown device {name!r}", 'use "auto", "cpu", "cuda" or "cuda:0"')
    index = int(asked.group(1) or 0)
    count, reason = _cuda_count()
    if count == 0:
        raise MachineError(
            f'device "{name}" asked for, but {reason}', 'use device "cpu" or "auto"; see `detscope doctor`'
        )
    if index >= count:
        raise MachineError(
            f'device "{name}" asked for, but CUDA has {count} device{"s" if count > 1 else ""} here',
            f"use cuda:0{f' to cuda:{count - 1}' if count > 1 else ''}; CUDA_VISIBLE_DEVICES hides devices",
        )
    return f"cuda:{index}"


def _cuda_count() -> tuple[int, str]:
    """How many CUDA devices torch can use and, if none, why."""
    import torch

    if torch.version.cuda is None:
        return 0, f"this torch ({torch.__version__}) is built without CUDA"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")  # torch warns here when the driver is too old for it
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count, "" if count else _why_no_cuda(torch, [str(warning.message) for warning in heard])


def _why_no_cuda(torch: ModuleType, heard: list[str]) -> str:
    if heard:
        return f"CUDA cannot start: {heard[0].splitlines()[0]}"
    from detscope.machine.gpus import list_gpus

    found = list_gpus()
    if not found.devices:
        return f"there is no CUDA device ({found.reason})"
    return f"torch {torch.__version__} cannot use the {found.devices[0].name} (driver {found.driver})"
