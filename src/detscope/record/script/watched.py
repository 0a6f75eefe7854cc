"""What a script's recorder knows of the script while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from detscope.record.model.borders import Calls
from detscope.record.model.calls import Outside


class Watched(Calls, Protocol):
    """What the script is doing now; hears of calls that no recorded call encloses."""

    module_call: Callable[..., Any] | None  # what stands in nn.Module while no model is known

    @property
    def root_call(self) -> Outside:
        """A module is called by no other."""


class GlobalPhases:
    """Phases of a script come from global hooks, which ask whether to write; nothing is attached."""

    def __init__(self, watched: Watched) -> None:
        self.calls: Calls = watched
        self.outside: Outside | None = watched.root_call
        self.replaces = watched.module_call

    def around(self, module: nn.Module) -> None:
        """Never asked: the script's tracker writes the forward phase."""

    def attach(self) -> None:
        """Nothing is to be done."""

    def detach(self) -> None:
        """Nothing is to be done."""

    def remove(self) -> None:
        """Nothing is to be done."""
