"""The answers of a made-up program by plain counting of ticks: slow, simple, and not the code under test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from made_program import DeviceEvent, HostEvent, Program

SHORT_GAP_TICKS = 20


@dataclass
class Answers:
    window: list[int]  # the ticks of the window
    kernels: int
    with_copies: int
    causes: Counter[str]
    blame: Counter[tuple[str, str]]  # of synchronisations: call and module or ""
    efficiency: float
    per_module: Counter[str | None]


def answers(program: Program) -> Answers:
    busy, kernels = set(), set()
    for event in program.device:
        ticks = range(event.start, event.end)
        busy.update(ticks)
        if event.kind == "kernel":
            kernels.update(ticks)
    window = _window(program)
    inside = set(window)
    causes: Counter[str] = Counter()
    blame: Counter[tuple[str, str]] = Counter()
    everything = range(min([*window, *busy]), max([*window, *busy]) + 1)
    gap: list[int] = []
    for tick in [*everything, None]:
        if tick is not None and tick not in busy:
            gap.append(tick)
        elif gap:
            _explain(program, gap, inside, causes, blame)
            gap = []
    per_module: Counter[str | None] = Counter()
    for module in {event.module for event in program.device}:
        own = {
            t
            for e in program.device
            if e.module == module and e.kind == "kernel"
            for t in range(e.start, e.end)
        }
        per_module["(model)" if module == "" else module] += len(own & inside)
    return Answers(
        window,
        len(kernels & inside),
        len(busy & inside),
        causes,
        blame,
        sum(min(1.0, sum(e.blocks or 0 for e in program.device if e.start <= t < e.end)) for t in window),
        per_module,
    )


def _window(program: Program) -> list[int]:
    """Steps are neighbours here; the last ends with its last event, the first begins after earlier work."""
    last_end = program.steps[-1][2]
    ends = [e.end for e in program.device if _launch(e) < last_end]
    return list(range(program.steps[0][1], max([last_end, *ends])))


def _launch(event: DeviceEvent) -> int:
    return event.launch.start if event.linked else event.start


def _explain(
    program: Program, gap: list[int], inside: set[int], causes: Counter[str], blame: Counter[tuple[str, str]]
) -> None:
    begin, end = gap[0], gap[-1] + 1
    ender = next((event for event in program.device if event.start == end), None)
    if ender is not None and not ender.linked:
        causes["unknown"] += len(inside.intersection(gap))
        return
    if ender is not None and ender.launch.end <= begin:
        name = "short_gaps" if end - begin <= SHORT_GAP_TICKS else "queued"
        causes[name] += len(inside.intersection(gap))
        return
    launch = ender.launch.start if ender else end + 10**9
    waiting = [
        call for call in program.host if _waits(call, program) and call.start <= begin <= call.end <= launch
    ]
    call = max(waiting, key=lambda candidate: candidate.end) if waiting else None
    for tick in gap:
        if tick not in inside:
            continue
        loading = any(e.kind == "loader" and e.start <= tick < e.end for e in program.host)
        if loading and tick < launch:
            causes["data"] += 1
        elif call is not None:
            causes["synchronisation"] += 1
            blame[_name(call, program)] += 1
        else:
            causes["host"] += 1


def _waits(call: HostEvent, program: Program) -> bool:
    if call.kind != "runtime":
        return False
    if "Synchronize" in call.name:
        return True
    return call.name == "cudaMemcpyAsync" and any(
        e.linked and e.launch is call and call.end >= e.end for e in program.device
    )


def _name(call: HostEvent, program: Program) -> tuple[str, str]:
    around = [
        e
        for e in program.host
        if e.kind == "operator" and e.thread == call.thread and e.start <= call.start and call.end <= e.end
    ]
    if not around:
        return "synchronize", call.name
    outermost = min(around, key=lambda e: e.start)
    copies = [
        e.copy
        for e in program.device
        if e.copy
        and e.linked
        and outermost.start <= e.launch.start <= call.start
        and e.launch.thread == call.thread
    ]
    names = {"aten::item": "item", "aten::nonzero": "nonzero"}
    if outermost.name == "aten::to":
        return ('to("cuda")' if copies[-1:] == ["HtoD"] else 'to("cpu")'), call.name
    return names.get(outermost.name, outermost.name), call.name
