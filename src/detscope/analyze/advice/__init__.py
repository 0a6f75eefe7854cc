"""Advice: rules that look at a run's figures or replay its step; each is one file in `rules` and one test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from detscope.analyze.advice.case import Advice, AdviceRule, Case, MemoryCase
from detscope.analyze.memory.account import find_peak
from detscope.analyze.memory.blocks import ledger_of, windows_of
from detscope.analyze.memory.figures import MemoryAccount
from detscope.analyze.memory.replay import peak_of, replay_of
from detscope.analyze.rerun import MADE_BY_SETTINGS, rerun_command
from detscope.analyze.step.clocks import read_times
from detscope.analyze.step.steps import choose_typical_steps
from detscope.parts import parts_of
from detscope.runs.reader import Run

if TYPE_CHECKING:
    from detscope.analyze.summary import RunSummary

LEAST_GAIN = 0.01  # of the step; less is not worth a change
WORTH_SAYING = 0.005  # of the peak


def advise_on_time(summary: RunSummary, settings: Mapping[str, Any] | None = None) -> list[Advice]:
    """What would make the step shorter, largest estimated gain first."""
    case = Case(summary, settings or {})
    if not case.step_ms and (summary.device_use is None or summary.device_use.idle is None):
        return []  # neither a step nor a device's window to save anything of
    found = [
        msgspec.structs.replace(advice, rule=rule.name)
        for rule in parts_of("advice", AdviceRule)
        if rule.time is not None and (advice := rule.time(case)) is not None
    ]
    worth = [advice for advice in found if (advice.gain_share or 0.0) >= LEAST_GAIN]
    return sorted(worth, key=lambda advice: -(advice.gain_share or 0.0))


def advise_on_memory(run: Run, account: MemoryAccount) -> list[Advice]:
    """What would lower the peak, largest saving first; `worth` where it is worth a line."""
    case = _replay_case(run, account)
    if case is None:
        return []
    found = [
        msgspec.structs.replace(
            advice,
            rule=rule.name.removeprefix("memory."),
            worth=abs(advice.saves_bytes or 0) >= WORTH_SAYING * case.peak_bytes,
        )
        for rule in parts_of("advice", AdviceRule)
        if rule.memory is not None and (advice := rule.memory(case)) is not None
    ]
    found = [_set_measured(advice, account) for advice in found]
    return sorted(found, key=lambda advice: -(_best_saving(advice) or 0))


def _set_measured(advice: Advice, account: MemoryAccount) -> Advice:
    """What --try measured of this advice, beside what the replay expects."""
    tried = next((row for row in account.tried if row.variant == advice.rule), None)
    if tried is None or tried.measured_saving_bytes is None:
        return advice
    return msgspec.structs.replace(
        advice,
        measured_bytes=int(tried.measured_saving_bytes),
        measured_peak_bytes=int(tried.peak_bytes) if tried.peak_bytes is not None else None,
        measured_step_ratio=tried.step_ratio,
    )


def _best_saving(advice: Advice) -> int | None:
    return advice.saves_bytes if advice.measured_bytes is None else advice.measured_bytes


def spans_on_clock(run: Run) -> pl.DataFrame:
    """`spans` with the device's time in the place of the host's: the mean of the steps that tell it."""
    spans, steps = run.table("spans"), run.table("steps")
    device = read_times(run, choose_typical_steps(steps)).told
    if device is None:
        return spans
    node = ("kind", "path", "direction")
    by_step = device.spans.group_by(*node, "step").agg(pl.col("wall_ns").sum())
    means = by_step.group_by(node).agg(pl.col("wall_ns").mean().cast(pl.Int64))
    told = spans.join(means, on=node, how="left", maintain_order="left")
    return told.with_columns(total_ns=pl.col("wall_ns").fill_null(0)).drop("wall_ns")


def _replay_case(run: Run, account: MemoryAccount) -> MemoryCase | None:
    """The step of the peak; of half a step no replay can tell anything."""
    blocks = run.table("memory")
    if not blocks.height:
        return None
    ledger = ledger_of(blocks.filter(pl.col("device") == account.device))
    event, window = find_peak(ledger, windows_of(ledger, run.table("steps")))
    if window is None or window.mode == "unfinished":
        return None
    replay = replay_of(ledger, window)
    rerun = rerun_command(run.folder, run.info)
    return MemoryCase(
        replay=replay,
        peak_bytes=peak_of(replay),
        peak_ns=int(ledger.time_ns[event]),
        nodes=run.table("nodes").unique(["kind", "path"], maintain_order=True),
        spans=spans_on_clock(run),
        training=dict((run.info.get("settings") or {}).get("training") or {}),
        info=run.info,
        slope=account.slope,
        categories={category.name: category.bytes for category in account.categories},
        by_settings=run.info.get("verb") in MADE_BY_SETTINGS and rerun is not None,
    )
