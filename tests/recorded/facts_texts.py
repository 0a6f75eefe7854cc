"""What is nobody else's business is left out of the facts."""

from __future__ import annotations

import re

_HOME = re.compile(r"(/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s:;\"']+")


def without_home(text: str) -> str:
    """The text with another name for whoever's home folder it names."""
    return _HOME.sub(r"\1somebody", text)
