"""detscope: where every millisecond and megabyte of an object detector goes.

The public API is small: `watch` for a script as it is, `Recorder` and `region` in your own loop, `load_run`
and `summarize` on what was recorded. Importing this module imports neither torch nor the tables library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detscope.marks import phase, region

if TYPE_CHECKING:
    from detscope.analyze.summary import summarize
    from detscope.record.recorder import Recorder
    from detscope.runs.reader import load_run
    from detscope.sessions.run.watch import watch

__version__ = "0.1.0"
__all__ = ["Recorder", "__version__", "load_run", "phase", "region", "summarize", "watch"]

_LAZY = {
    "Recorder": "detscope.record.recorder",
    "load_run": "detscope.runs.reader",
    "summarize": "detscope.analyze.summary",
    "watch": "detscope.sessions.run.watch",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'detscope' has no attribute {name!r}")
