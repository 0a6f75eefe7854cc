"""One exception tree: every error carries a message, a hint and an exit code.

The command line prints `message` on one line and `hint` on the next; nothing else in the
package decides about exit codes.
"""

from __future__ import annotations


class DetscopeError(Exception):
    """An error the user can act on: what happened, what to try, how the process ends."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DetscopeError):
    """Wrong flags or settings."""

    exit_code = 2


class InputError(DetscopeError):
    """Input data (images, annotations, weights, archives, recorded files) that cannot be used."""

    exit_code = 3


class OwnCodeError(InputError):
    """The user's own code (a model, a data set) raised or gave what cannot be used; its line is named."""


class ProcessEnded(DetscopeError):
    """The user's own code ended the process; its exit code is that of the command."""

    def __init__(self, message: str, code: object) -> None:
        super().__init__(message, "a model that is measured has to return")
        self.exit_code = code % 256 if isinstance(code, int) else 1  # a text is an error, as in Python


class MachineError(DetscopeError):
    """The machine lacks something: a device, disk space, shared memory, a permission."""

    exit_code = 4


class UnstableError(DetscopeError):
    """Measured, but too noisy for `--strict`."""

    exit_code = 5


class TrialsFailedError(DetscopeError):
    """Some trials of a sweep failed."""

    exit_code = 6


class GateError(DetscopeError):
    """A comparison gate said no."""

    exit_code = 7


class InterruptedRun(DetscopeError):
    """Stopped by the user; what was recorded is kept."""

    exit_code = 130


class SettingsError(UsageError):
    """All problems of a configuration at once, one line each."""

    def __init__(self, problems: list[str], hint: str = "") -> None:
        super().__init__("\n".join(problems), hint)
        self.problems = problems
