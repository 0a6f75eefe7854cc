"""A table on a terminal: figures keep their width, words share what is left, nothing is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from detscope.report.figures import plain
from detscope.report.model import Table, Tone
from detscope.report.render.cells import cell_of
from detscope.report.render.wrapping import longest_piece, pad_cells, wrap_text

BAR_CELLS, GAP = 20, 2
LEAST_WORDS = 8  # cells that a column of words gets at least, if its words are that long
STYLES: dict[Tone, str] = {"": "", "good": "green", "warn": "yellow", "bad": "bold red", "strong": "bold"}
_WORDS = ("text", "code", "sentence")


@dataclass
class _Strip:
    """A column as it will be printed."""

    title: str
    cells: list[str]
    words: bool  # may wrap, stands on the left
    bar: bool = False  # a drawing: may be left out
    width: int = field(init=False)
    natural: int = field(init=False)
    least: int = field(init=False)

    def __post_init__(self) -> None:
        widest = max((cell_len(cell) for cell in self.cells), default=0)
        self.natural = max(widest, cell_len(self.title))
        self.least = max(widest, longest_piece(self.title))
        if self.words:
            pieces = max((_indent_of(cell) + longest_piece(cell) for cell in self.cells), default=0)
            self.least = max(pieces, longest_piece(self.title), min(LEAST_WORDS, self.natural))
        self.width = self.natural


def table_lines(table: Table, width: int, *, rows: int, ascii_only: bool, every_column: bool) -> list[Text]:
    """The first rows of a table; columns that do not fit follow beneath, with the first one again.

    With `every_column` those that are not brief are shown too, where all of them fit beside each other.
    """
    brief = [index for index, column in enumerate(table.columns) if column.brief]
    strips = _make_strips(table, range(len(table.columns)), rows, ascii_only) if every_column else []
    if not strips or len(_group_strips(strips, width)) > 1:
        strips = _make_strips(table, brief, rows, ascii_only)
    lines: list[Text] = []
    for group in _group_strips(strips, width):
        lines += [Text()] if lines else []
        _set_widths(group, width)
        lines += _print_group(group, table)
    return lines


def _make_strips(table: Table, shown: Sequence[int], rows: int, ascii_only: bool) -> list[_Strip]:
    strips = []
    for index in shown:
        column = table.columns[index]
        indents = ["  " * depth for depth in table.depth] if table.depth and index == shown[0] else []
        cells = [
            (indents[number] if indents else "") + cell_of(row[index], column).text
            for number, row in enumerate(table.rows[:rows])
        ]
        strips.append(_Strip(plain(column.title), cells, column.kind in _WORDS))
        if column.bar:
            strips.append(_Strip("", _bars_of(table, index, rows, ascii_only), words=True, bar=True))
    return strips


def _bars_of(table: Table, index: int, rows: int, ascii_only: bool) -> list[str]:
    """Bars laid end to end: each begins where the one above it ended, so that one sees them add up."""
    drawn, bars = 0.0, []
    for number, row in enumerate(table.rows[:rows]):
        value = row[index]
        is_part = bool(table.depth) and table.depth[number] > 0  # of a row above, which has the bar
        share = float(value) if isinstance(value, int | float) and not is_part else 0.0
        start, end = (round(max(0.0, min(1.0, place)) * BAR_CELLS) for place in (drawn, drawn + share))
        bars.append(" " * start + ("#" if ascii_only else "█") * (end - start))
        drawn += share
    return bars


def _group_strips(strips: list[_Strip], width: int) -> list[list[_Strip]]:
    """All side by side, else without bars, else as many as fit with the others beneath."""
    if _least_width(strips) <= width:
        return [strips]
    figures = [strip for strip in strips if not strip.bar]
    groups: list[list[_Strip]] = [figures[:1]]
    for strip in figures[1:]:
        if _least_width([*groups[-1], strip]) > width and len(groups[-1]) > 1:
            groups.append([figures[0]])
        groups[-1].append(strip)
    return groups


def _least_width(strips: Sequence[_Strip]) -> int:
    return sum(strip.natural if strip.bar else strip.least for strip in strips) + GAP * (len(strips) - 1)


def _set_widths(strips: Sequence[_Strip], width: int) -> None:
    """Natural widths where they fit; else figures as narrow as they can be, and words share the rest."""
    room = width - GAP * (len(strips) - 1)
    for strip in strips:
        strip.width = strip.natural
    if sum(strip.width for strip in strips) <= room:
        return
    for strip in strips:
        strip.width = strip.natural if strip.bar else strip.least
    spare = room - sum(strip.width for strip in strips)
    # words first, and of these the narrowest: what can be made whole with little is made whole
    for words in (True, False):
        for strip in sorted((one for one in strips if one.words is words), key=lambda one: one.natural):
            more = min(max(0, spare), strip.natural - strip.width)
            strip.width += more
            spare -= more


def _print_group(strips: Sequence[_Strip], table: Table) -> list[Text]:
    lines = [Text(line, style="dim") for line in _print_row([strip.title for strip in strips], strips)]
    for number in range(len(strips[0].cells)):
        style = STYLES[table.tones[number]] if table.tones else ""
        cells = [strip.cells[number] for strip in strips]
        lines += [Text(line, style=style) for line in _print_row(cells, strips)]
    return lines


def _print_row(cells: Sequence[str], strips: Sequence[_Strip]) -> list[str]:
    stacks = [_stack_lines(cell, strip) for cell, strip in zip(cells, strips, strict=True)]
    height = max(map(len, stacks))
    return [
        (" " * GAP)
        .join(
            pad_cells(stack[number] if number < len(stack) else "", strip.width, right=not strip.words)
            for stack, strip in zip(stacks, strips, strict=True)
        )
        .rstrip()
        for number in range(height)
    ]


def _stack_lines(cell: str, strip: _Strip) -> list[str]:
    """A cell's lines; what goes on beneath keeps the indentation."""
    if cell_len(cell) <= strip.width:
        return [cell]
    indent = " " * _indent_of(cell)
    return [indent + line for line in wrap_text(cell, max(1, strip.width - len(indent)))]


def _indent_of(cell: str) -> int:
    return len(cell) - len(cell.lstrip())


def table_title(table: Table, rows: int) -> str:
    """The caption, and how many of the rows are shown where not all are."""
    more = f" (first {rows} of {len(table.rows)})" if rows < len(table.rows) else ""
    return plain(table.caption) + more
