"""Sessions of torch.profiler, the same by every torch from 2.6 on, without a word on stderr."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

METADATA = "expose_kineto_event_metadata"  # by it events of a device tell launch sizes and bytes
_ERROR = 2  # of the levels of torch's C++ code


def make_session(activity: str | None = None, setting: str | None = None, **options: Any) -> Any:
    """A session that is still to be started; `activity`: what it hears beside the host.

    `setting`: an experimental one to be switched on, where this torch knows it.
    """
    from torch import profiler

    activities = [profiler.ProfilerActivity.CPU]
    if activity is not None:
        activities.append(getattr(profiler.ProfilerActivity, activity))
        setting = setting or METADATA
    config = None if setting is None else find_setting(setting)
    kind: Any = profiler.profile
    if isinstance(kind, type):  # else somebody's stand-in
        kind = _make_silent(kind, bool(options.get("profile_memory")))
    return kind(activities=activities, experimental_config=config, acc_events=True, **options)


def find_setting(name: str) -> Any:
    """The profiler's configuration with this one switched on; None where torch does not know it."""
    import torch

    try:
        make: Any = torch._C._profiler._ExperimentalConfig
        return make(**{name: True})
    except TypeError:
        return None


@functools.lru_cache(maxsize=1)
def _find_log_level() -> Any:
    """From which level on torch's C++ code writes to stderr, as a number that can be set; None: not found."""
    import torch

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=4)
def _make_silent(plain: type[Any], with_memory: bool) -> type[Any]:
    """The class without a warning of torch 2.10, which comes unless events of cycles are to be kept.

    Keeping them makes a Python object of each, a hundred times as dear as reading them. So it is told that
    they are to be kept, and when it has not warned, that they are not. And without what the allocator says
    on stderr, once in a thousand blocks, of those that are older than the session.
    """

    class SilentProfile(plain):  # type: ignore[misc]
        _written_from: int | None = None  # what it was before

        def start(self) -> None:
            level = _find_log_level() if with_memory else None
            if level is not None:
                self._written_from, level.value = level.value, max(level.value, _ERROR)
            # read at the first start, without it the library writes to stderr; the script's own names stay so
            given = "KINETO_LOG_LEVEL" in os.environ
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            try:
                super().start()
            finally:
                if not given:
                    del os.environ["KINETO_LOG_LEVEL"]

        def stop(self) -> None:
            try:
                super().stop()
            finally:
                if self._written_from is not None:
                    _find_log_level().value, self._written_from = self._written_from, None

        def prepare_trace(self) -> None:
            super().prepare_trace()
            self.profiler.acc_events = False

    return SilentProfile
