"""Module borders in somebody else's process: one thread writes, and code that is compiled is let alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from torch.compiler import is_compiling

from detscope.record.memory_spans import SeeingScribe


class Watched(Protocol):
    """What the script is doing now."""

    owner: int | None  # the thread that trains
    inside: int  # phases that are open
    in_backward: int


class ScriptScribe(SeeingScribe):
    """Records calls of the thread that trains, and what the autograd engine recomputes in its own."""

    watched: Watched

    def forward(self, plain: Callable[..., Any], numbers: dict[int, int]) -> Callable[..., Any]:
        """As any scribe's, for the right thread only."""
        recorded = super().forward(plain, numbers)
        watched = self.watched

        @functools.wraps(plain)
        def forward(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return plain(self_, *args, **kwargs)
            if not watched.inside or (get_ident() != watched.owner and not watched.in_backward):
                return plain(self_, *args, **kwargs)
            return recorded(self_, *args, **kwargs)

        return forward
