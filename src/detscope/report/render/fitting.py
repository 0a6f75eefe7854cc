"""Pieces of a screen of so many lines: where they are too many, the least important gives up its last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

Lines = list[Text]
BLANK = 9


@dataclass
class Piece:
    """Lines that belong together, and how many of them must stay."""

    lines: Lines
    least: int
    gives_up: float  # the higher, the earlier it is shortened
    goes_on: bool = False  # sentences: where their end is left out, one sees it
    whole: bool = False  # a command or a table: half of it is worse than none


def blank_piece() -> Piece:
    """An empty line, the first to go."""
    return Piece([Text()], 0, BLANK)


def fit_pieces(pieces: Sequence[Piece], most_lines: int, width: int) -> bool:
    """Shorten pieces until all fit, or nothing can be left out any more; True where something of use was."""
    cut = False
    while sum(height_of(piece.lines, width) for piece in pieces) > most_lines:
        longer = [piece for piece in pieces if len(piece.lines) > piece.least]
        if not longer:
            break
        chosen = max(longer, key=lambda piece: (piece.gives_up, len(piece.lines)))
        cut = cut or any(line.plain.strip() for line in chosen.lines[0 if chosen.whole else -1 :])
        del chosen.lines[0 if chosen.whole else -1 :]
        if chosen.lines and chosen.goes_on:
            chosen.lines[-1] = _mark_cut(chosen.lines[-1], width)
    return cut


def shorten_sentences(pieces: Sequence[Piece], most_lines: int, width: int) -> None:
    """As `fit_pieces`, of empty lines and sentences alone."""
    fit_pieces([piece for piece in pieces if not piece.whole], most_lines - _rest(pieces, width), width)


def _rest(pieces: Sequence[Piece], width: int) -> int:
    return sum(height_of(piece.lines, width) for piece in pieces if piece.whole)


def height_of(lines: Lines, width: int) -> int:
    """Rows of a terminal: what nobody may break, such as a long path in a command, takes several."""
    return sum(max(1, -(-line.cell_len // width)) for line in lines)


def _mark_cut(line: Text, width: int) -> Text:
    """A sentence whose end is left out shows it."""
    text = line.plain.removesuffix(" …")
    while cell_len(text) > width - 2:
        text = text.rpartition(" ")[0]
    cut = line[: len(text)]
    return cut.append(" …")
