"""How a recording ended: what `run.json` says of it."""

from __future__ import annotations

from detscope.faults import text_of


def outcome_of(kind: type[BaseException] | None, error: BaseException | None) -> tuple[str, str | None]:
    """Status and reason, by the exception that ended it."""
    if kind is None:
        return "ok", None
    if issubclass(kind, KeyboardInterrupt):
        return "partial", "interrupted"
    if issubclass(kind, GeneratorExit):
        return "ok", None
    return "failed", f"{kind.__name__}: {error and text_of(error)}".splitlines()[0][:500]
