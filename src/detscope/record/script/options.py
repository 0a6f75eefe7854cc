"""What a person may ask of `detscope run` and `detscope.watch()`; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from detscope.errors import UsageError
from detscope.record.device.nsight import StepWindow, parse_window

Level = Literal["phases", "modules", "ops"]
LEVELS: tuple[Level, ...] = ("phases", "modules", "ops")
WARMUP_STEPS = 3


@dataclass(frozen=True)
class ScriptOptions:
    """How a script is recorded."""

    out: Path = Path("runs")
    level: Level = "modules"
    memory: bool = False
    census: bool = False  # at level ops it is counted anyway
    window: StepWindow | None = None  # steps of the script, without the end; None: all
    max_steps: int | None = None  # recorded steps after which the script is stopped
    script: str = ""  # its name in the run
    command: tuple[str, ...] = ()  # what starts it again behind `detscope run`; empty: not known
    folder: str = ""  # where that was typed
    rank: int | None = None  # of several processes that run the same script
    ranks: int = 1

    def run_name(self, model: str) -> str:
        """The part of the run folder's name that says what was measured."""
        return f"{model}-rank{self.rank}" if self.rank else model  # rank 0's becomes the run of all


def make_options(
    *,
    out: str | Path | None = None,
    level: str = "modules",
    memory: bool = False,
    census: bool = False,
    window: str | None = None,
    max_steps: int | None = None,
    script: str = "",
    command: tuple[str, ...] = (),
) -> ScriptOptions:
    """Options as given by a person, checked; the folder stays where it is if the script changes its own."""
    known = next((one for one in LEVELS if one == level), None)
    if known is None:
        raise UsageError(f"level {level!r} is not one of {', '.join(LEVELS)}", "try --level modules")
    if max_steps is not None and max_steps < 1:
        raise UsageError(f"--max-steps {max_steps} records nothing", "give at least 1")
    return ScriptOptions(
        out=Path(out or "runs").absolute(),
        level=known,
        memory=memory,
        census=census,
        window=None if window is None else parse_window(window),
        max_steps=max_steps,
        script=script,
        command=command,
        folder=str(Path.cwd()) if command else "",
    )
