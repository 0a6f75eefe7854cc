"""A planted script on the simulated device: where the host waits for it in a step, by line."""

from __future__ import annotations

import importlib
import runpy
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import simulated
from simulated import Simulation, simulate

HERE = Path(__file__).parent
STEPS = 3  # of which the last counts
_BESIDE = (
    f"{torch.__path__[0]}/",
    str(Path(simulated.__file__).parent),
    __file__,
    sysconfig.get_path("stdlib"),
    "<",
)
_LOADING = "collate_on_device"  # no part of the step

Lines = dict[tuple[str, int], int]


def count_simulated_waits(script: Path) -> Lines:
    """Waits of the script's last step by file and line: the innermost one outside of torch."""
    found: list[tuple[int, str, int]] = []
    with simulate() as simulation, _few_steps() as shared:
        asked = _count_calls(shared.Drawn, "__getitem__")
        _listen_to_waits(simulation, lambda file, line: found.append((len(asked), file, line)))
        runpy.run_path(str(script), run_name="__main__")
    return dict(Counter((file, line) for images, file, line in found if images == len(asked)))


@contextmanager
def _few_steps() -> Iterator[Any]:
    """What scripts share, loaded anew: it looks for a device; and put back what scripts leave behind."""
    sys.path.insert(0, str(HERE))
    shared: Any = importlib.import_module("drawn_boxes")
    shared.STEPS, shared.Drawn.__init__.__defaults__ = STEPS, (None, 2 * STEPS)
    try:
        yield shared
    finally:
        sys.path.remove(str(HERE))
        del sys.modules["drawn_boxes"]
        torch.utils.deterministic.fill_uninitialized_memory = True


def _count_calls(owner: Any, name: str) -> list[None]:
    plain, calls = getattr(owner, name), []

    def call(*args: Any) -> Any:
        calls.append(None)
        return plain(*args)

    setattr(owner, name, call)
    return calls


def _listen_to_waits(simulation: Simulation, tell: Any) -> None:
    machine, main = simulation.machine, threading.get_ident()
    plain = machine._wait_for

    def wait_for(*args: Any) -> None:
        # of the engine's thread it is who went backward
        frame = _leave_libraries(sys._getframe(1)) or _leave_libraries(sys._current_frames()[main])
        assert frame is not None
        if _LOADING not in frame.f_code.co_qualname:
            tell(Path(frame.f_code.co_filename).name, frame.f_lineno)
        plain(*args)

    machine._wait_for = wait_for  # type: ignore[method-assign]


def _leave_libraries(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_filename.startswith(_BESIDE):
        frame = frame.f_back
    return frame
