"""For the site: the comment behind a field is its documentation there, as it is in `detscope schema`."""

from __future__ import annotations

import io
import tokenize
from typing import Any

from griffe import Attribute, Class, Docstring, Extension


class FieldComments(Extension):
    """Gives every field of a class that has no docstring the comment that stands behind it."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Look at the fields of a class once all of them are known."""
        for member in cls.members.values():
            if isinstance(member, Attribute) and member.docstring is None:
                comment = _find_comment(member)
                if comment:
                    member.docstring = Docstring(comment, parent=member)


def _find_comment(member: Attribute) -> str:
    """The comment at the end of the field's line."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(member.source).readline))
    except (tokenize.TokenError, IndentationError, ValueError):
        return ""
    found = next((token.string for token in tokens if token.type == tokenize.COMMENT), "")
    return found.removeprefix("#").strip()
