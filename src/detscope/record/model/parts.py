"""Named parts of what a call does itself: the code between the calls inside of it.

A matcher computes costs, copies them and assigns, all in one function; a detector selects its queries between
its modules. What can be heard are calls. So the time of the enclosing call is cut where calls inside of it
begin and end: a part begins when a certain call has ended and lasts until another one that cuts begins, or
the enclosing call ends. A part is a node like others, entered and left in order; nothing is done at calls
that neither cut nor are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detscope.record.model.borders import Pair
from detscope.zoo.contract import BEGIN

Run = Callable[..., Any]
Around = Callable[[Run, tuple[Any, ...], dict[str, Any]], Any]


class CutCall:
    """A call under way that is cut into parts."""

    def __init__(self, following: dict[str, list[Pair]]) -> None:
        self.following = (
            following  # by the target that has ended: parts after its first call, its second, ...
        )
        self._ended: dict[str, int] = {}
        self._open: Pair | None = None

    def end_part(self, reached: Any) -> None:
        """What runs now ends; `reached` holds what it made: arguments of the next call, or the result."""
        if self._open is not None:
            _, after = self._open
            self._open = None
            after(None, None, reached)

    def begin_part(self, target: str) -> None:
        """This target has ended."""
        parts, count = self.following[target], self._ended.get(target, 0)
        self._ended[target] = count + 1
        self._open = parts[min(count, len(parts) - 1)]
        before, _ = self._open
        before(None, ())


class PartPlan:
    """Which calls are cut, and by which; filled once, asked at these calls alone."""

    def __init__(self) -> None:
        self._under_way: list[CutCall] = []
        self._parts: dict[str, dict[str, list[Pair]]] = {}

    def add_part(self, target: str, after: str, pair: Pair) -> None:
        """Calls of `target` have a part after `after`."""
        self._parts.setdefault(target, {}).setdefault(after, []).append(pair)

    def list_targets(self) -> set[str]:
        """Targets whose calls are cut, or cut others."""
        return {*self._parts, *(target for parts in self._parts.values() for target in parts)} - {BEGIN}

    def forget_open(self) -> None:
        """Forget calls that are under way, after something left them open."""
        self._under_way.clear()

    def wrap_call(self, target: str, around: Around) -> Around:
        """How a target is called that is cut or cuts; `around` is what is done in any case."""
        own, under_way = self._parts.get(target), self._under_way

        def call(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            caller = under_way[-1] if under_way and target in under_way[-1].following else None
            if caller is not None:
                caller.end_part((args, kwargs))
            try:
                return around(run if own is None else self._cut_run(own, run), args, kwargs)
            finally:
                if caller is not None:
                    caller.begin_part(target)

        return call

    def _cut_run(self, following: dict[str, list[Pair]], run: Run) -> Run:
        def run_in_parts(*args: Any, **kwargs: Any) -> Any:
            call, under_way, output = CutCall(following), self._under_way, None
            under_way.append(call)
            if BEGIN in following:
                call.begin_part(BEGIN)
            try:
                output = run(*args, **kwargs)
                return output
            finally:
                call.end_part(output)
                if under_way and under_way[-1] is call:
                    under_way.pop()

        return run_in_parts
