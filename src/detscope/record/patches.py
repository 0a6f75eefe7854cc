"""Attributes of libraries that are replaced while something is recorded, and how they come back."""

from __future__ import annotations

from typing import Any

_ABSENT = object()
# stand-ins that ended below somebody else's patch, and what they stood for: nobody puts them back
_ended: list[tuple[Any, Any]] = []


class Patches:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, stand_in: Any) -> None:
        """Replace an attribute; what it was comes back with `undo`."""
        earlier = vars(owner).get(name, _ABSENT)
        setattr(owner, name, stand_in)
        self._done.append((owner, name, stand_in, earlier))

    def undo(self) -> None:
        """Put everything back, last first; what somebody else has replaced since stays theirs."""
        while self._done:
            owner, name, stand_in, earlier = self._done.pop()
            if vars(owner).get(name) is not stand_in:
                _ended.append((stand_in, earlier))
                continue
            while found := [before for ended, before in _ended if ended is earlier]:
                earlier = found[0]
            if earlier is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, earlier)
