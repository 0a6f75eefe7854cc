"""Sessions of torch.profiler, the same by every torch from 2.6 on, without a word on stderr."""

from __future__ import annotations

import functools
import os
from typing import Any

METADATA = "expose_kineto_event_metadata"  # by it events of a device tell launch sizes and bytes


def make_session(activity: str | None = None, setting: str | None = None, **options: Any) -> Any:
    """A session that is still to be started; `activity`: what it hears beside the host.

    `setting`: an experimental one to be switched on, where this torch knows it.
    """
    # read at the profiler's first start; without it the library writes to stderr
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch import profiler

    activities = [profiler.ProfilerActivity.CPU]
    if activity is not None:
        activities.append(getattr(profiler.ProfilerActivity, activity))
        setting = setting or METADATA
    config = None if setting is None else find_setting(setting)
    kind: Any = profiler.profile
    if isinstance(kind, type):  # else somebody's stand-in
        kind = _make_silent(kind)
    return kind(activities=activities, experimental_config=config, acc_events=True, **options)


def find_setting(name: str) -> Any:
    """The profiler's configuration with this one switched on; None where torch does not know it."""
    import torch

    try:
        make: Any = torch._C._profiler._ExperimentalConfig
        return make(**{name: True})
    except TypeError:
        return None


@functools.lru_cache(maxsize=4)
def _make_silent(plain: type[Any]) -> type[Any]:
    """The class without a warning of torch 2.10, which comes unless events of cycles are to be kept.

    Keeping them makes a Python object of each, a hundred times as dear as reading them. So it is told that
    they are to be kept, and when it has not warned, that they are not.
    """

    class SilentProfile(plain):  # type: ignore[misc]
        def prepare_trace(self) -> None:
            super().prepare_trace()
            self.profiler.acc_events = False

    return SilentProfile
