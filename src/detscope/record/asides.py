"""Time in collectives inside of a model's forward and backward: a stage of its own, no module's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from detscope.record.memory.failures import open_phase
from detscope.record.steps.events import ENTER, MARK, WIDTH

if TYPE_CHECKING:
    from detscope.record.recorder import Recorder

COLLECTIVES = "collectives"


def asides_of(recorder: Recorder) -> Callable[[str], Callable[[], None]]:
    """A function that takes what follows for time in collectives, and gives the one that ends it."""
    node = recorder.nodes.add("region", COLLECTIVES, "region", COLLECTIVES)
    buffer = recorder._buffer

    def nothing() -> None: ...

    def set_aside(phase: str) -> Callable[[], None]:
        if recorder._attached != "modules" or phase not in ("forward", "backward"):
            return nothing
        if phase == "forward":
            buffer.enter_node(node.number)
            return lambda: _leave(node.number)
        owner = _last_mark(buffer.items)
        buffer.add_event(node.number * 4 + MARK)
        return nothing if owner is None else lambda: _give_back(owner)

    def _leave(number: int) -> None:
        buffer.exit_node(number)

    def _give_back(code: int) -> None:
        buffer.add_event(code)

    return set_aside


def phase_in(recorder: Recorder) -> str | None:
    """The phase under way; None between steps."""
    if recorder._step is None:
        return None
    return open_phase(recorder._buffer.items, recorder.nodes) or "other"


def _last_mark(items: list[int]) -> int | None:
    """The code of the node whose backward runs."""
    for index in range(len(items) - WIDTH, -1, -WIDTH):
        if items[index] & 3 == MARK:
            return items[index]
        if items[index] & 3 == ENTER:  # of the phase: nothing has been marked since
            return None
    return None
