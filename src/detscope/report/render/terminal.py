"""Sections and first screens on a terminal, line by line. Knows no figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from detscope.report.figures import plain
from detscope.report.model import Absent, Block, Cards, Fact, Facts, Findings, Notes, Section, Table
from detscope.report.render.terminal_table import STYLES, table_lines, table_title
from detscope.report.render.wrapping import pad_cells, wrap_command, wrap_text

LABEL_CELLS = 12
LEAST_ROWS = 3  # of a table that is shortened to fit a screen
Lines = list[Text]


def print_sections(
    sections: Sequence[Section | Absent], console: Console, *, most_lines: int | None = None, more: str = ""
) -> None:
    """Print the brief form of every section that has one, with an empty line around tables.

    With `most_lines` tables lose rows until all fits; `more` says where these are.
    """
    chosen = [section for section in sections if isinstance(section, Section)]
    tables = [block for section in chosen for block in section.blocks if isinstance(block, Table)]
    wanted = {id(table): min(table.brief_rows, len(table.rows)) for table in tables}
    rows = wanted if most_lines is None else {key: min(most_lines, count) for key, count in wanted.items()}
    lines = _brief_lines(chosen, console, rows)
    room = len(lines) if most_lines is None else most_lines - (1 if more else 0)
    while len(lines) > room and max(rows.values(), default=0) > LEAST_ROWS:
        rows[max(rows, key=lambda key: rows[key])] -= 1
        lines = _brief_lines(chosen, console, rows)
    if rows != wanted and more:
        lines += _labelled_lines("more", [more])
    for line in lines:
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


def _brief_lines(sections: Sequence[Section], console: Console, rows: dict[int, int]) -> Lines:
    lines: Lines = []
    after_facts: bool | None = None  # nothing has been printed
    for section in sections:
        for part, is_facts in _brief_parts(section, console, rows):
            if after_facts is not None and not (is_facts and after_facts):
                lines.append(Text())
            lines += part
            after_facts = is_facts
    return lines


def _brief_parts(section: Section, console: Console, rows: dict[int, int]) -> Iterator[tuple[Lines, bool]]:
    if section.brief_title:
        yield [Text(line, style="bold") for line in wrap_text(plain(section.title), console.width)], False
    for block in section.blocks:
        if isinstance(block, Table):
            if rows[id(block)] and block.rows:
                yield _table_block(block, console, rows[id(block)]), False
        elif (isinstance(block, Findings) or getattr(block, "brief", False)) and (
            lines := _told_block(block, console.width)
        ):
            yield lines, not isinstance(block, Findings)


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
        lines += labelled("", finding.evidence, width) if finding.evidence else []
        lines += labelled_command("", finding.command, width) if finding.command else []
    return lines


def _table_block(table: Table, console: Console, rows: int, *, whole: bool = False) -> Lines:
    title = [Text(line, style="bold") for line in wrap_text(table_title(table, rows), console.width)]
    ascii_only = console.options.ascii_only
    return title + table_lines(table, console.width, rows=rows, ascii_only=ascii_only, every_column=whole)
