"""The window of steps that NVIDIA's tools record: the profiler is switched on before it and off after it.

`detscope train --nsight` starts the same command again under `nsys` or `ncu` and names the window in an
environment variable. The command under the tool has done its work once the window is over, and ends.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detscope.errors import UsageError

if TYPE_CHECKING:
    from detscope.record.step_recorder import StepRecorder

ENVIRONMENT = "DETSCOPE_NSIGHT_WINDOW"
STEP_MARK = "detscope:step"


@dataclass(frozen=True)
class StepWindow:
    """Steps from `first` to `end`, without `end`, counted from 0 with the warm-up."""

    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


def parse_window(text: str) -> StepWindow:
    """`100:200` as a window."""
    first, colon, end = text.partition(":")
    if not (colon and first.strip().isdecimal() and end.strip().isdecimal()):
        raise UsageError(f"--window {text!r} is not FIRST:END", "as in --window 100:200")
    window = StepWindow(int(first), int(end))
    if not window.first < window.end <= 1_000_000:
        raise UsageError(f"--window {text} holds no step", "END must be larger than FIRST: --window 100:200")
    return window


class CudaSwitch:
    """CUDA's profiler, between synchronisations, and NVTX ranges that name the steps."""

    def __init__(self) -> None:
        from torch import cuda

        self._cuda = cuda

    def switch_on(self) -> None:
        """Everything that was queued before the window is done before it begins."""
        self._cuda.synchronize()
        self._cuda.profiler.start()

    def switch_off(self) -> None:
        """Everything that was queued in the window belongs to it."""
        self._cuda.synchronize()
        self._cuda.profiler.stop()

    def begin_step(self, index: int) -> None:
        """Open the range of a step."""
        self._cuda.nvtx.range_push(f"{STEP_MARK} {index}")

    def end_step(self) -> None:
        """Close the range of the step."""
        self._cuda.nvtx.range_pop()


def watch_window(recorder: StepRecorder, switch: CudaSwitch | None = None) -> None:
    """Record the window that the environment names; without one nothing happens.

    Call it when `between_steps` has been set; what was set there goes on being called.
    """
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return
    window, chosen, before = parse_window(text), switch or CudaSwitch(), recorder.between_steps

    def switch_at_border(steps_done: int) -> None:
        if window.first < steps_done <= window.end:
            chosen.end_step()
        before(steps_done)
        if steps_done == window.end:
            chosen.switch_off()
            raise SystemExit(0)
        if window.first <= steps_done < window.end:
            if steps_done == window.first:
                chosen.switch_on()
            chosen.begin_step(steps_done)

    recorder.between_steps = switch_at_border
    if window.first == 0:
        chosen.switch_on()
        chosen.begin_step(0)
