"""What would lower the peak: each rule replays this run's own step and says what it saves and costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detscope.analyze.advice.rules.memory.activations import bf16_advice, channels_advice, checkpoint_advice
from detscope.analyze.advice.rules.memory.batch import batch_advice, layout_advice
from detscope.analyze.advice.memory.case import Case
from detscope.analyze.advice.rules.memory.state import frozen_advice, optimizer_advice, zero_grad_advice
from detscope.analyze.memory.blocks import Ledger, Window
from detscope.analyze.memory.replay import peak_of, replay_of
from detscope.analyze.rerun import MADE_BY_SETTINGS, rerun_command
from detscope.runs.reader import Run

Advice = dict[str, Any]
RULES: tuple[Callable[[Case], Advice | None], ...] = (
    batch_advice,
    bf16_advice,
    checkpoint_advice,
    frozen_advice,
    optimizer_advice,
    zero_grad_advice,
    channels_advice,
    layout_advice,
)
WORTH_SAYING = 0.005  # of the peak


def memory_advice(
    run: Run, ledger: Ledger, window: Window, event: int, figures: dict[str, Any]
) -> list[Advice]:
    """What every rule has to say, largest saving first; `worth` where it is worth a line."""
    case = case_of(run, ledger, window, event, figures)
    found = [advice for rule in RULES if (advice := rule(case)) is not None]
    for advice in found:
        advice["worth"] = abs(advice["saves_bytes"]) >= WORTH_SAYING * case.peak_bytes
    return sorted(found, key=lambda advice: -advice["saves_bytes"])


def case_of(run: Run, ledger: Ledger, window: Window, event: int, figures: dict[str, Any]) -> Case:
    """What all rules look at."""
    replay = replay_of(ledger, window)
    return Case(
        replay=replay,
        peak_bytes=peak_of(replay),
        peak_ns=int(ledger.time_ns[event]),
        nodes=run.table("nodes").unique(["kind", "path"], maintain_order=True),
        spans=run.table("spans"),
        training=dict((run.info.get("settings") or {}).get("training") or {}),
        info=run.info,
        slope=figures.get("slope"),
        categories=figures["categories"],
        by_settings=run.info.get("verb") in MADE_BY_SETTINGS
        and rerun_command(run.folder, run.info) is not None,
    )
