"""detscope: where every millisecond and megabyte of an object detector goes.

The public API is small: `watch` for a script as it is, `Recorder` and `region` in your own loop, `load_run`
and `summarize` on what was recorded. Importing this module imports neither torch nor the tables library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detscope.marks import phase, region

if TYPE_CHECKING:
    from detscope.analyze.summary import summarize
    from detscope.report.notebook.loaded import load_run
    from detscope.sessions.own_loop import PublishingRecorder as Recorder
    from detscope.sessions.run.watch import watch

__version__ = "0.1.0"
__all__ = ["Recorder", "__version__", "load_run", "phase", "region", "summarize", "watch"]

_LAZY = {
    "Recorder": ("detscope.sessions.own_loop", "PublishingRecorder"),
    "load_run": ("detscope.report.notebook.loaded", "load_run"),
    "summarize": ("detscope.analyze.summary", "summarize"),
    "watch": ("detscope.sessions.run.watch", "watch"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        module, own_name = _LAZY[name]
        return getattr(import_module(module), own_name)
    raise AttributeError(f"module 'detscope' has no attribute {name!r}")
