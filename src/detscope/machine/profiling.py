"""Sessions of torch.profiler, the same by every torch from 2.6 on, without a word on stderr."""

from __future__ import annotations

import functools
import os
from typing import Any


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
    config = None if setting is None else _switch_on(setting)
    kind = _make_silent(profiler.profile)
    return kind(activities=activities, experimental_config=config, acc_events=True, **options)


def _switch_on(setting: str) -> Any:
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(**{setting: True})
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
