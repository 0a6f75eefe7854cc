"""Tables as Markdown; names stay names, whatever they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.report.figures import plain


def name_cell(value: object) -> str:
    """A name as code: Markdown and HTML in it are inert. What could end it is replaced."""
    text = plain(value).replace("`", "'").replace("|", "¦").strip()
    return f"`{text}`" if text else ""


def sentence(value: object) -> str:
    """A sentence whose words may come from outside."""
    text = plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{char}" if char in "\\`*_[]#|!" else char for char in text)


def table(names: Sequence[str], figures: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first columns are names, on the left, and the others figures, on the right."""
    lines = ["| " + " | ".join((*names, *figures)) + " |"]
    lines.append("|" + " --- |" * len(names) + " ---: |" * len(figures))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
