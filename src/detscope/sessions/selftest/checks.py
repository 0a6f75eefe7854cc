"""One check per thing that must come out as it was planted; each is one row of the self-test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter_ns
from typing import Literal

import torch

from detscope.machine.peak import time_work
from detscope.sessions.selftest.planted import (
    SIZES,
    WAIT_S,
    PlantedRun,
    Workbench,
)

Verdict = Literal["right", "wrong", "cannot tell"]
SHARE, LEAST_MS = 0.05, 0.5  # how far a time may be off
COUNTED = 1e-6
_MARKS, _MARK_FACTOR = 200, 4.0


@dataclass(frozen=True)
class CheckRow:
    """What was planted, what came out, and what that means."""

    name: str
    verdict: Verdict
    planted: str
    found: str
    why: str = ""


@dataclass
class Recordings:
    """Runs that several checks look at, each made when it is first asked for."""

    bench: Workbench

    @cached_property
    def plain(self) -> PlantedRun:
        """A training that waits for its data; on a device also for the device, at the end of a step."""
        return self.bench.record(wait_s=WAIT_S, copies=self.on_device, read_loss=self.on_device)

    @cached_property
    def operators(self) -> PlantedRun:
        """The same under torch's profiler, without waits."""
        return self.bench.record("ops", steps=8)

    @property
    def on_device(self) -> bool:
        """Whether there is a device beside the host."""
        return not self.bench.accelerator.is_host


Check = Callable[[Recordings], CheckRow]


def judge_times(name: str, planted: Sequence[float], found: Sequence[float | None]) -> CheckRow:
    """Times in ms, beside what they have to be."""
    told = " / ".join(f"{one:.2f}" for one in planted) + " ms"
    said = " / ".join("-" if one is None else f"{one:.2f}" for one in found) + " ms"
    if any(one is None for one in found):
        return CheckRow(name, "cannot tell", told, said, "there is no such figure")
    off = [
        abs((other or 0.0) - one) > max(SHARE * one, LEAST_MS)
        for one, other in zip(planted, found, strict=True)
    ]
    if any(off):
        return CheckRow(name, "wrong", told, said, f"off by more than {SHARE:.0%} and {LEAST_MS:g} ms")
    return CheckRow(name, "right", told, said)


def check_forward(recordings: Recordings) -> CheckRow:
    """Modules of 1, 2 and 4 times some work, forward."""
    return _judge_modules("modules forward, 1 : 2 : 4", recordings.plain, "forward")


def check_backward(recordings: Recordings) -> CheckRow:
    """The same backward."""
    return _judge_modules("modules backward, 1 : 2 : 4", recordings.plain, "backward")


def _judge_modules(name: str, run: PlantedRun, direction: Literal["forward", "backward"]) -> CheckRow:
    found = [getattr(run.find_module(module), f"{direction}_ms", None) for module in SIZES]
    readings = [getattr(run.modules[module], f"{direction}s") for module in SIZES]
    return judge_times(name, [run.expect_ms(run.read_ms(one)) for one in readings], found)


def check_phases(recordings: Recordings) -> CheckRow:
    """Phases of a step are the step."""
    summary = recordings.plain.summary
    whole = summary.clocks.device_step_ms if summary.clocks.clock == "device" else summary.step_ms.p50
    total = sum(phase.ms for phase in summary.phases)
    if whole is None:
        return CheckRow(
            "phases add up to the step", "cannot tell", "-", f"{total:.3f} ms", "no step was timed"
        )
    verdict: Verdict = "right" if abs(total - whole) <= 0.01 * whole else "wrong"
    return CheckRow("phases add up to the step", verdict, f"{whole:.3f} ms", f"{total:.3f} ms")


def check_data_wait(recordings: Recordings) -> CheckRow:
    """A loader that sleeps: the device, or the host of a CPU, waits for it."""
    run = recordings.plain
    phase = run.summary.find_phase("data")
    waits = [run.waits_ms[step] for step in run.steps]
    return judge_times("waiting for data", [run.expect_ms(waits)], [None if phase is None else phase.ms])


def check_operators(recordings: Recordings) -> CheckRow:
    """torch's profiler: every planted product is counted, in its module."""
    run, bench = recordings.operators, recordings.bench
    wanted = [bench.count * size for size in SIZES.values()]
    found = [
        sum(
            one.count
            for one in run.summary.operators
            if _is_product(one.name, one.module, one.direction, name)
        )
        for name in SIZES
    ]
    same = all(abs(one - other) < COUNTED for one, other in zip(wanted, found, strict=True))
    told, said = (" / ".join(f"{one:g}" for one in some) for some in (wanted, found))
    if not run.summary.operators:
        return CheckRow("products counted per module", "cannot tell", told, "-", "no operators were recorded")
    return CheckRow("products counted per module", "right" if same else "wrong", told, said)


def _is_product(name: str, module: str | None, direction: str, wanted: str) -> bool:
    return name == "aten::mm" and module == wanted and direction == "forward"


def check_out_of_memory(recordings: Recordings) -> CheckRow:
    """More memory than there is: the run says so, and where."""
    run = recordings.bench.record_greed()
    wanted = "oom_device" if recordings.on_device else "oom_host"
    told = run.run.info.get("oom") or {}
    said = f"{run.run.status} in {told.get('module') or told.get('phase') or 'no place'}"
    right = run.run.status == wanted and "greedy" in said
    return CheckRow("out of memory is named", "right" if right else "wrong", f"{wanted} in greedy", said)


def check_half(recordings: Recordings) -> CheckRow:
    """Another precision: other times, and the right ones."""
    kind, name = (torch.float16, "fp16") if recordings.on_device else (torch.bfloat16, "bf16")
    run = recordings.bench.record(precision=kind, steps=10)
    return _judge_modules(f"modules forward in {name}", run, "forward")


def check_own_cost(recordings: Recordings) -> CheckRow:
    """What recording costs is told."""
    cost = recordings.plain.summary.overhead_ratio
    if cost.value is None:
        return CheckRow("cost of recording", "cannot tell", "-", "-", cost.why or "")
    return CheckRow("cost of recording", "right", "measured", f"a step takes {cost.value:.3f} times as long")


# ---- on a device alone


def check_clock(recordings: Recordings) -> CheckRow:
    """The device's clock against the wall: a queue that is waited for once."""
    accelerator = recordings.bench.accelerator
    one = torch.eye(recordings.bench.side, device=accelerator.name)
    each_s = time_work(accelerator, lambda: torch.mm(one, one))
    count = max(10, round(0.2 / each_s))
    first, last = accelerator.make_mark(), accelerator.make_mark()
    accelerator.wait()
    begin_ns = perf_counter_ns()
    accelerator.put_mark(first)
    for _ in range(count):
        torch.mm(one, one)
    accelerator.put_mark(last)
    accelerator.wait()
    wall_ms = (perf_counter_ns() - begin_ns) / 1e6
    return judge_times(
        "device clock against the wall", [wall_ms], [accelerator.elapsed_ns(first, last) / 1e6]
    )


def check_copy(recordings: Recordings) -> CheckRow:
    """A copy from pinned memory."""
    run = recordings.plain
    phase = run.summary.find_phase("transfer")
    return judge_times(
        "copy to the device", [run.expect_ms(run.read_ms(run.copies))], [None if phase is None else phase.ms]
    )


def check_synchronisation(recordings: Recordings) -> CheckRow:
    """A value that the host asks for inside forward: the host's forward is long, the device's is not."""
    run = recordings.bench.record(asks=True)
    row = _judge_modules("a synchronisation inside forward", run, "forward")
    forward = run.summary.find_phase("forward")
    if row.verdict != "right" or forward is None or forward.host_ms is None:
        return row
    return CheckRow(row.name, row.verdict, row.planted, f"{row.found}; host {forward.host_ms:.2f} ms")


def check_side_stream(recordings: Recordings) -> CheckRow:
    """Copies on another stream run beside the step."""
    kind = recordings.bench.accelerator.kind
    if not hasattr(getattr(torch, kind, None), "Stream"):
        return CheckRow("copies on a side stream", "cannot tell", "-", "-", f"{kind} has no streams")
    run = recordings.bench.record(copies=True, beside=True)
    beside = [one.ms for one in run.summary.clocks.side_streams]
    planted = run.expect_ms(run.read_ms(run.copies))
    return judge_times("copies on a side stream", [planted], [sum(beside) if beside else None])


def check_kernels(recordings: Recordings) -> CheckRow:
    """Marks and kernels tell the same."""
    run = recordings.operators
    own = [
        one
        for one in run.summary.clocks.agreement
        if one.kind == "phase" and one.name in ("forward", "backward")
    ]
    name = "marks against kernels"
    if not own:
        return CheckRow(name, "cannot tell", "-", "-", "marks and kernels were not both recorded")
    return judge_times(name, [one.kernels_ms for one in own], [one.marks_ms for one in own])


def check_mark_cost(recordings: Recordings) -> CheckRow:
    """What a mark costs the host, as the run says and as it is when one puts many."""
    accelerator, told = recordings.bench.accelerator, recordings.plain.summary.clocks
    marks = [accelerator.make_mark() for _ in range(_MARKS)]
    accelerator.wait()
    begin_ns = perf_counter_ns()
    for mark in marks:
        accelerator.put_mark(mark)
    plain_us = (perf_counter_ns() - begin_ns) / _MARKS / 1e3
    accelerator.wait()
    if told.mark_us is None:
        return CheckRow("cost of a mark", "cannot tell", f"{plain_us:.2f} us", "-", told.why or "no marks")
    share = f", {told.marks_share:.1%} of a step" if told.marks_share is not None else ""
    said = f"{told.mark_us:.2f} us, {told.marks_per_step or 0:.0f} per step{share}"
    near = plain_us / _MARK_FACTOR <= told.mark_us <= plain_us * _MARK_FACTOR
    verdict: Verdict = "right" if near else "wrong"
    return CheckRow(
        "cost of a mark", verdict, f"{plain_us:.2f} us", said, "" if near else "the host measured another"
    )


EVERYWHERE: tuple[Check, ...] = (
    check_forward,
    check_backward,
    check_phases,
    check_data_wait,
    check_operators,
    check_half,
    check_out_of_memory,
    check_own_cost,
)
ON_DEVICES: tuple[Check, ...] = (
    check_clock,
    check_copy,
    check_synchronisation,
    check_side_stream,
    check_kernels,
    check_mark_cost,
)
