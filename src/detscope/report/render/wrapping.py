"""Text in columns of a terminal: lines that break between words, never inside of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

_PIECES = re.compile(
    r"[^./_:,=-]*[./_:,=-]+|[^./_:,=-]+"
)  # a path, a name of a module or an option may break behind these


def wrap_text(text: str, width: int) -> list[str]:
    """Lines of at most so many cells; a word that is longer than a line breaks behind a dot or a slash."""
    width = max(2, width)  # the widest character takes two cells
    return _fill_lines(_fitting_words(text, width), width)


def wrap_command(command: str, width: int) -> list[str]:
    """A command over several lines that a shell takes as one when they are pasted."""
    if cell_len(command) <= width:
        return [command]
    lines = _fill_lines([(word, " ") for word in command.split(" ")], width - 4)
    return [
        ("" if index == 0 else "  ") + line + (" \\" if index < len(lines) - 1 else "")
        for index, line in enumerate(lines)
    ]


def shorten_middle(text: str, width: int, dots: str = "…") -> str:
    """A name with its middle left out: its beginning says where, its end says what."""
    if cell_len(text) <= width:
        return text
    room = max(0, width - len(dots))
    tail = room - room // 3
    return text[: room // 3] + dots + text[len(text) - tail :]


def pad_cells(text: str, width: int, *, right: bool = False) -> str:
    """Text with spaces up to a width, before it where it is a figure."""
    missing = max(0, width - cell_len(text))
    return " " * missing + text if right else text + " " * missing


def longest_piece(text: str) -> int:
    """The cells of the longest part that does not break."""
    return max((cell_len(piece) for word in text.split() for piece in _PIECES.findall(word)), default=0)


def _fitting_words(text: str, width: int) -> Iterator[tuple[str, str]]:
    """Words with what stands before them on their line; long ones in pieces, with nothing between."""
    for word in text.split():
        if cell_len(word) <= width:
            yield word, " "
            continue
        before = " "
        for piece in _PIECES.findall(word):
            while cell_len(piece) > width:  # nothing to break behind
                head = set_cell_size(piece, width).rstrip() or piece[0]
                yield head, before
                piece, before = piece[len(head) :], ""
            yield piece, before
            before = ""


def _fill_lines(words: Iterator[tuple[str, str]] | Sequence[tuple[str, str]], width: int) -> list[str]:
    lines = [""]
    for word, before in words:
        glue = before if lines[-1] else ""
        if cell_len(lines[-1]) + len(glue) + cell_len(word) <= width or not lines[-1]:
            lines[-1] += glue + word
        else:
            lines.append(word)
    return lines
