"""Sessions of torch.profiler: silent, and without Python objects that nobody reads."""

import os
import warnings
from typing import Any

import pytest
import torch

from detscope.machine import profiling
from detscope.machine.profiling import make_session


@pytest.mark.usefixtures("no_warning_was_shown")
def test_sessions_begin_and_end_without_a_warning_and_hear_what_runs() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            with make_session(record_shapes=True) as session:
                torch.ones(3) + 1
            names = [event.name() for event in session.profiler.kineto_results.events()]
            assert "aten::add" in names
    assert not heard
    assert session.profiler._function_events is None, "as Python objects events take a hundred times as long"


@pytest.fixture
def no_warning_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: torch warns once."""
    if hasattr(torch.profiler.profiler, "_WARNINGS_SHOWN"):
        monkeypatch.setattr(torch.profiler.profiler, "_WARNINGS_SHOWN", set())


def test_a_setting_that_this_torch_does_not_know_is_left_out() -> None:
    def config_of(setting: str) -> Any:
        return make_session(setting=setting).experimental_config

    assert config_of("verbose") is not None
    assert config_of("not_yet_invented") is None


def test_blocks_that_are_older_than_a_session_are_freed_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The allocator says so on stderr, once in a thousand of them."""
    level = profiling._find_log_level()
    before = level.value
    for _ in range(2):
        blocks = [torch.ones(64) for _ in range(1500)]
        with make_session(profile_memory=True):
            assert level.value > 1
            del blocks
        assert level.value == before
    assert "unknown size" not in capfd.readouterr().err


def test_a_session_leaves_the_environment_as_it_was() -> None:
    before = dict(os.environ)
    with make_session():
        assert dict(os.environ) == before
    assert dict(os.environ) == before
