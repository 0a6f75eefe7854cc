"""Peak of the bytes that torch allocates on a CPU in one training step, from traced steps of two batch sizes.

Everything in a step grows linearly with the batch or not at all. Where both traces call the same operators,
every block is drawn out on its own; where a detector works image by image they do not, and the level between
each two convolutions is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from detscope.predict.memory.lifetimes import CATEGORIES, MemoryEvent
from detscope.predict.trace.scratch import ScratchSizes, bound_scratch
from detscope.predict.trace.step import BACKWARD, FORWARD, StorageBlock, TracedStep

OPTIMIZERS = ("sgd", "adam")
FLOAT_BYTES = 4
_LANDMARKS = ("aten.convolution", "aten.convolution_backward")
_AT_ONCE = 8  # units that are measured together
_OPTIMIZER_KEYS = 1 << 40  # block numbers of the optimizer, beyond all others


@dataclass(frozen=True)
class CpuPeak:
    """The highest level of a step and what it was made of."""

    allocated_bytes: int
    categories: dict[str, int]


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """Events of a traced step and the unit (see `number_units`) of each; of operators: end and unit.

    Equal only to itself, so that it is a quick key.
    """

    step: TracedStep
    events: tuple[MemoryEvent, ...]
    units: tuple[int, ...]
    call_ends: tuple[int, ...]
    call_units: tuple[int, ...]


def make_extrapolation(steps: tuple[TracedStep, TracedStep], batch: int) -> Callable[[int, int], int]:
    """What draws a size of both traced steps out to another batch."""
    share = (batch - steps[0].batch) / (steps[1].batch - steps[0].batch)
    return lambda low, high: round(low + share * (high - low))


@lru_cache(maxsize=8)
def number_units(steps: tuple[TracedStep, TracedStep]) -> tuple[list[int], list[int]]:
    """A number for every operator, the same in both steps: its own, or that of the last convolution."""
    one, other = (step.log.calls for step in steps)
    if steps_match(*steps):
        return list(range(len(one))), list(range(len(other)))
    found = tuple(list(accumulate(int(call.name in _LANDMARKS) for call in step.log.calls)) for step in steps)
    if found[0][-1] != found[1][-1]:  # not even the same convolutions
        return [0] * len(one), [0] * len(other)
    return found[0], found[1]


def steps_match(one: TracedStep, other: TracedStep) -> bool:
    """Whether both call the same operators and make the same blocks in the same order."""
    return one.log.events == other.log.events and [call.name for call in one.log.calls] == [
        call.name for call in other.log.calls
    ]


@lru_cache(maxsize=8)
def make_timelines(
    steps: tuple[TracedStep, TracedStep], optimizer: str | None
) -> tuple[StepTimeline, StepTimeline]:
    """Both steps with the numbers of the same units."""
    units = number_units(steps)
    return _make_timeline(steps[0], units[0], optimizer), _make_timeline(steps[1], units[1], optimizer)


def _make_timeline(step: TracedStep, units: Sequence[int], optimizer: str | None) -> StepTimeline:
    """The events of a step that is not the first: the optimizer's state is there, gradients are not."""
    log = step.log
    trained = [log.blocks[number].size_bytes for number in step.trained]
    # SGD keeps momentum; Adam two averages and a count
    states = {"sgd": lambda size: [size], "adam": lambda size: [size, size, FLOAT_BYTES]}
    state = [part for size in trained if optimizer for part in states[optimizer](size)]
    events = [MemoryEvent(_OPTIMIZER_KEYS + place, size, "optimizer") for place, size in enumerate(state)]
    ends: list[int] = []  # how many events there are when an operator ends
    places: list[int] = []
    for operator, number, comes in log.events:
        while len(ends) < min(operator, len(units)):
            places += [units[len(ends)]] * (len(events) - len(places))
            ends.append(len(events))
        block = log.blocks[number]
        if block.size_bytes:
            category = categorize_block(block, number, step)
            events.append(MemoryEvent(number, comes * block.size_bytes, category, block.stage))
    ends += [len(events)] * (len(units) - len(ends))
    places += [units[-1]] * (len(events) - len(places))
    events += [MemoryEvent(key, size) for key, size in _list_update(trained, optimizer)]
    places += [units[-1] + 1] * (len(events) - len(places))
    return StepTimeline(step, tuple(events), tuple(places), tuple(ends), tuple(units))


def categorize_block(block: StorageBlock, number: int, step: TracedStep) -> str:
    """What a block is, by what holds it or by how long it lives."""
    if block.category:
        return block.category
    if number in step.gradients:
        return "gradients"
    return "activations" if block.phase == FORWARD and block.until in (BACKWARD, "") else "temporary"


def _list_update(trained: Sequence[int], optimizer: str | None) -> list[tuple[int, int]]:
    """Temporaries of torch's loop over parameters: SGD's decayed gradient; Adam's root and denominator.

    The denominator of one parameter lives until that of the next replaces it.
    """
    events: list[tuple[int, int]] = []
    key, last = 2 * _OPTIMIZER_KEYS, None
    for size in trained if optimizer else ():
        if optimizer == "sgd":
            events += [(key, size), (key, 0)]
            key += 1
            continue
        events += [(key, size), (key + 1, size), (key, 0)]
        if last is not None:
            events.append((last, 0))
        key, last = key + 2, key + 1
    return events if last is None else [*events, (last, 0)]


def find_peak(
    steps: tuple[TracedStep, TracedStep], batch: int, optimizer: str | None, book: ScratchSizes
) -> CpuPeak:
    """The peak of a step of `batch` images, drawn out from two traced ones.

    Scratch memory is measured only where it could make the peak: a few operators of hundreds.
    """
    lines = make_timelines(steps, optimizer)
    extrapolate = make_extrapolation(steps, batch)
    bounds = list(map(extrapolate, *map(_bound_scratch, lines)))
    measured: set[int] = set()
    while True:
        low, high = (_find_levels(line, book, book.known_count) for line in lines)
        drawn = [
            {name: extrapolate(one[name], other[name]) for name in CATEGORIES}
            for one, other in zip(low, high, strict=True)
        ]
        totals = [sum(level.values()) for level in drawn]
        best = max(totals)
        highest = {unit: totals[unit] + bound for unit, bound in enumerate(bounds) if bound}
        left = [unit for unit, most in highest.items() if unit not in measured and most > best]
        if not left:
            return CpuPeak(best, drawn[totals.index(best)])
        now = set(sorted(left, key=lambda unit: -highest[unit])[:_AT_ONCE])
        measured |= now
        pairs = [zip(line.step.log.calls, line.call_units, strict=True) for line in lines]
        book.measure_calls([call for pair in pairs for call, unit in pair if unit in now])


@lru_cache(maxsize=8)
def _bound_scratch(line: StepTimeline) -> list[int]:
    """The most that scratch memory can add in every unit."""
    found = [0] * (line.call_units[-1] + 1)
    for call, unit in zip(line.step.log.calls, line.call_units, strict=True):
        found[unit] = max(found[unit], bound_scratch(call))
    return found


def extrapolate_events(one: StepTimeline, other: StepTimeline, batch: int) -> list[MemoryEvent]:
    """The events at another batch size; the steps must match."""
    extrapolate = make_extrapolation((one.step, other.step), batch)
    found = []
    for low, high in zip(one.events, other.events, strict=True):
        size = extrapolate(low.bytes, high.bytes)
        # what comes must not come as nothing: that would mean that it goes
        found.append(MemoryEvent(low.key, max(1, size) if low.bytes else 0, low.category, low.stage))
    return found


@lru_cache(maxsize=8)
def _find_levels(line: StepTimeline, book: ScratchSizes, _known: int) -> list[dict[str, int]]:
    """The highest level in every unit, by category, with the scratch memory that is known by now."""
    live = dict.fromkeys(CATEGORIES, 0)
    held: dict[int, MemoryEvent] = {}
    found = [dict(live) for _ in range(line.units[-1] + 1)]
    best = [-1] * len(found)
    total = 0
    scratch: dict[int, list[tuple[int, int]]] = {}  # sizes and units by the number of events before it
    for call, end, unit in zip(line.step.log.calls, line.call_ends, line.call_units, strict=True):
        size = book.known_size(call)
        if size:
            scratch.setdefault(end, []).append((size, unit))
    for position, (event, unit) in enumerate(zip(line.events, line.units, strict=True), 1):
        if event.bytes:
            held[event.key] = event
            live[event.category] += event.bytes
            total += event.bytes
        else:
            gone = held.pop(event.key)
            live[gone.category] -= gone.bytes
            total -= gone.bytes
        if total > best[unit]:
            best[unit], found[unit] = total, dict(live)
        for size, own in scratch.get(position, ()):
            if total + size > best[own]:
                best[own], found[own] = total + size, {**live, "workspace": live["workspace"] + size}
    return found
