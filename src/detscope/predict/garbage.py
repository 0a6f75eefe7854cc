"""Python's garbage collection while a prediction is made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30


@contextmanager
def skip_full_collections() -> Iterator[None]:
    """Collect what is new, and leave out the rounds through everything that torch has loaded.

    A trace makes objects by the hundred thousand, each round takes a tenth of a second, and finds nothing.
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
