"""Batches in fewer pieces or on a calmer machine, where they lie ready and receiving them takes the time."""

from __future__ import annotations

from detscope.analyze.advice.case import Advice, AdviceRule, Case

MANY_TENSORS = 4
FEWER_SAVE = 0.6  # of receiving: what torch's "file_system" strategy saved of batches of 14 tensors
BUSY_PERCENT = 90.0
ELSEWHERE = 'collate into few tensors, or torch.multiprocessing.set_sharing_strategy("file_system")'


def advise(case: Case) -> Advice | None:
    """Every tensor that a worker sends is a file of shared memory to ask the worker for."""
    loader = case.summary.loader
    if not case.own_loader or not loader.lies_ready or loader.receive_ms is None:
        return None
    share = case.phases.get("data", 0.0) * loader.receive_ms / loader.wait_ms
    tensors = loader.tensors_per_batch or 0.0
    ready = f"Batches lie ready, and yet receiving takes {loader.receive_ms:.1f} ms of a step"
    if tensors >= MANY_TENSORS:
        return case.suggest_change(
            "send batches in fewer, larger tensors",
            f"{ready}: each of a batch's {tensors:.0f} tensors is a file that the loop asks a worker for.",
            share * FEWER_SAVE,
            "fewer files save as much of it as they did where this was measured",
            in_code=ELSEWHERE,
        )
    busy = _busy_percent(case)
    if busy is None or busy < BUSY_PERCENT:
        return None
    return case.suggest_change(
        "leave the loop and its workers free cores",
        f"{ready}, and the machine's processors are {busy:.0f} % busy: who hands over has to wait for one.",
        share / 2,
        "half of it is waiting for a processor",
        in_code="stop what else runs on the machine, or use fewer threads and workers",
    )


def _busy_percent(case: Case) -> float | None:
    """How busy the whole machine was."""
    rows = case.summary.telemetry
    found = (row.mean for row in rows if row.source == "system" and row.metric == "cpu_percent")
    return next(found, None)


PART = AdviceRule("receiving", 30, time=advise)
