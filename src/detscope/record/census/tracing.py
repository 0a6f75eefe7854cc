"""Programs that are traced while a step is counted: torch names their values by frames of Python above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.jit._trace as trace

_BEGINS = "_create_interpreter_name_lookup_fn"  # called before the first operator is traced


class TraceWatch:
    """Tells that a trace begins, from `start` to `stop`."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._plain: Any = None

    def start(self) -> None:
        """Listen; a torch without such a name is not listened to."""
        self._plain = getattr(trace, _BEGINS, None)
        if self._plain is not None:
            setattr(trace, _BEGINS, self._begin)

    def stop(self) -> None:
        """Put back what was there."""
        if self._plain is not None:
            setattr(trace, _BEGINS, self._plain)
            self._plain = None

    def _begin(self, *args: Any, **kwargs: Any) -> Any:
        plain = self._plain
        self._tell()
        return plain(*args, **kwargs)
