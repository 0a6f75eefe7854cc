"""Sections and first screens on a terminal, line by line. Knows no figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from detscope.report.figures import plain
from detscope.report.model import Absent, Block, Cards, Fact, Facts, Findings, Notes, Section, Table
from detscope.report.render.fitting import (
    BLANK,
    Lines,
    Piece,
    blank_piece,
    fit_pieces,
    height_of,
    shorten_sentences,
)
from detscope.report.render.terminal_table import STYLES, table_lines, table_title
from detscope.report.render.wrapping import pad_cells, wrap_command, wrap_text

LABEL_CELLS = 12
ENOUGH_ROWS, LEAST_ROWS = 8, 3  # of a table that is shortened to fit a screen; the latter where all is short
_TITLE, _TABLE, _SENTENCES = 1, 2, 5  # how early they are shortened; an empty line before all of them


def print_sections(
    sections: Sequence[Section | Absent], console: Console, *, most_lines: int | None = None, more: str = ""
) -> None:
    """Print the brief form of every section that has one, with an empty line around tables.

    With `most_lines` tables lose rows, sentences their end and later tables their place until all fits;
    `more` says where the rest is.
    """
    chosen = [section for section in sections if isinstance(section, Section)]
    tables = [block for section in chosen for block in section.blocks if isinstance(block, Table)]
    wanted = {id(table): min(table.brief_rows, len(table.rows)) for table in tables}
    if most_lines is None:
        _print_pieces(_make_pieces(chosen, console, wanted), console)
        return
    where = _labelled_lines("more", wrap_text(more, console.width - LABEL_CELLS - 1)) if more else []
    room = most_lines - len(where)
    rows = {key: min(most_lines, many) for key, many in wanted.items()}
    pieces = _make_pieces(chosen, console, rows)
    for least in (ENOUGH_ROWS, LEAST_ROWS):  # between them sentences lose their end
        while _height(pieces, console) > room and max(rows.values(), default=0) > least:
            rows[max(rows, key=lambda key: rows[key])] -= 1
            pieces = _make_pieces(chosen, console, rows)
            if least == LEAST_ROWS:
                shorten_sentences(pieces, room, console.width)
    cut = _shorten_pieces(pieces, room, console)
    first = next((key for key, many in rows.items() if many), None)
    while first is not None and rows[first] > 1 and not _has_table(pieces):  # rather one long row than none
        rows[first] -= 1
        pieces = _make_pieces(chosen, console, rows)
        cut = _shorten_pieces(pieces, room, console)
    _part_again(pieces, room - _height(pieces, console))
    _print_pieces(pieces, console)
    if cut or rows != wanted:
        _print_pieces([Piece(where, 0, 0)], console)


def _shorten_pieces(pieces: Sequence[Piece], room: int, console: Console) -> bool:
    cut = fit_pieces(pieces, room, console.width)
    if _height(pieces, console) > room:  # each sentence has one line left: some must go
        for piece in pieces:
            piece.least = 0 if piece.gives_up >= _SENTENCES else piece.least
        fit_pieces(pieces, room, console.width)
    return cut


def _has_table(pieces: Sequence[Piece]) -> bool:
    return any(piece.whole and piece.lines for piece in pieces)


def _part_again(pieces: Sequence[Piece], free: int) -> None:
    """Empty lines that went before a table did come back where there is room for them."""
    for place, piece in enumerate(pieces):
        gap = not piece.lines and piece.gives_up == BLANK and 0 < place < len(pieces) - 1
        if free > 0 and gap and pieces[place - 1].lines and pieces[place + 1].lines:
            piece.lines, free = [Text()], free - 1


def _height(pieces: Sequence[Piece], console: Console) -> int:
    return sum(height_of(piece.lines, console.width) for piece in pieces)


def _print_pieces(pieces: Sequence[Piece], console: Console) -> None:
    for piece in pieces:
        for line in piece.lines:
            print_line(console, line)


def print_whole(sections: Sequence[Section | Absent], console: Console) -> None:
    """Print sections whole: the answer, every fact and every row of each."""
    for number, section in enumerate(one for one in sections if isinstance(one, Section)):
        if number:
            print_line(console, Text())
        _print_section(section, console)


def _print_section(section: Section, console: Console) -> None:
    if section.title:
        for line in wrap_text(plain(section.title), console.width):
            print_line(console, Text(line, style="bold"))
    for line in wrap_text(plain(section.definition), console.width) if section.definition else ():
        print_line(console, Text(line, style="dim"))
    for block in section.blocks:
        told = _whole_block(block, console)
        for text in [Text(), *told] if told else ():
            print_line(console, text)


def print_line(console: Console, line: Text) -> None:
    """A line as it is: it fits, or is nobody's to break."""
    console.print(line, soft_wrap=True)


def labelled(label: str, text: str, width: int, style: str = "", cells: int = LABEL_CELLS) -> Lines:
    """A word on the left and a text beside it; what goes on beneath stands under the text."""
    return _labelled_lines(label, wrap_text(plain(text), max(20, width - cells - 1)), style, cells)


def labelled_command(label: str, command: str, width: int, cells: int = LABEL_CELLS) -> Lines:
    """As `labelled`, for what is to be typed."""
    return _labelled_lines(label, wrap_command(plain(command), width - cells - 1), "cyan", cells)


def _labelled_lines(label: str, texts: Sequence[str], style: str = "", cells: int = LABEL_CELLS) -> Lines:
    return [
        Text.assemble((pad_cells(plain(label) if index == 0 else "", cells) + " ", "dim"), (text, style))
        for index, text in enumerate(texts)
    ]


def _make_pieces(sections: Sequence[Section], console: Console, rows: dict[int, int]) -> list[Piece]:
    """What is brief, in order; what comes later gives up earlier, but for facts that stay."""
    pieces: list[Piece] = []
    after_facts: bool | None = None  # nothing has been printed
    for section in sections:
        for found, is_facts in _brief_parts(section, console, rows):
            if after_facts is not None and not (is_facts and after_facts):
                pieces.append(blank_piece())
            for piece in found:
                piece.gives_up += len(pieces) / 1000 if piece.gives_up else 0  # what comes later goes first
                pieces.append(piece)
            after_facts = is_facts
    return pieces


def _brief_parts(
    section: Section, console: Console, rows: dict[int, int]
) -> Iterator[tuple[list[Piece], bool]]:
    if section.brief_title:
        title = [Text(line, style="bold") for line in wrap_text(plain(section.title), console.width)]
        yield [Piece(title, 2, _TITLE, goes_on=True)], False
    for block in section.blocks:
        if isinstance(block, Table):
            if rows[id(block)] and block.rows:
                lines = _table_block(block, console, rows[id(block)])
                yield [Piece(lines, 0, _TABLE, whole=True)], False
        elif isinstance(block, Facts) and block.brief and block.facts:
            yield list(_fact_pieces(block.facts, console.width)), True
        elif getattr(block, "brief", False) and (lines := _told_block(block, console.width)):
            yield [Piece(lines, 1, _SENTENCES, goes_on=True)], not isinstance(block, Findings)


def _fact_pieces(facts: Sequence[Fact], width: int) -> Iterator[Piece]:
    last = ""
    for fact in facts:
        label = "" if fact.label == last else fact.label
        lines = _facts_lines([Fact(label, fact.text, fact.tone)], width)
        yield Piece(lines, 1, 0 if fact.stays else _SENTENCES, goes_on=True)
        last = fact.label


def _whole_block(block: Block, console: Console) -> Lines:
    if isinstance(block, Table):
        return _table_block(block, console, len(block.rows), whole=True) if block.rows else []
    return _told_block(block, console.width)


def _told_block(block: Block, width: int) -> Lines:
    """Facts, cards, notes and findings; of charts and pictures nothing."""
    if isinstance(block, Facts):
        return _facts_lines(block.facts, width)
    if isinstance(block, Cards):
        cards = [Fact(card.label, f"{card.value}  {card.detail}".rstrip(), card.tone) for card in block.cards]
        return _facts_lines(cards, width)
    if isinstance(block, Notes):
        return _facts_lines([Fact("note", sentence, "warn") for sentence in block.sentences], width)
    return _findings_lines(block, width) if isinstance(block, Findings) else []


def _facts_lines(facts: Sequence[Fact], width: int) -> Lines:
    """Labels and texts; a label is written once, and one that is too long stands above its text."""
    lines: Lines = []
    last = ""
    for fact in facts:
        label = "" if fact.label == last else plain(fact.label)
        if len(label) > LABEL_CELLS:
            lines.append(Text(label, style="dim"))
            label = ""
        lines += labelled(label, fact.text, width, STYLES[fact.tone])
        last = fact.label
    return lines


def _findings_lines(block: Findings, width: int) -> Lines:
    lines: Lines = []
    for index, finding in enumerate(block.findings):
        gain = f" ({finding.gain})" if finding.gain else ""
        lines += labelled("advice" if index == 0 else "", finding.title + gain, width, "bold")
        lines += labelled("", finding.told, width) if finding.told else []
        lines += labelled_command("", finding.command, width) if finding.command else []
    return lines


def _table_block(table: Table, console: Console, rows: int, *, whole: bool = False) -> Lines:
    title = [Text(line, style="bold") for line in wrap_text(table_title(table, rows), console.width)]
    ascii_only = console.options.ascii_only
    return title + table_lines(table, console.width, rows=rows, ascii_only=ascii_only, every_column=whole)
