"""Sections on a terminal: what of each is brief, one beneath the other. Knows no figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from detscope.report.figures import plain
from detscope.report.model import Absent, Block, Cards, Fact, Facts, Findings, Notes, Section, Table, Tone
from detscope.report.render.cells import cell_of

LABEL_CELLS, BAR_CELLS = 12, 20
_STYLES: dict[Tone, str] = {"": "", "good": "green", "warn": "yellow", "bad": "bold red", "strong": "bold"}
_WORDS = ("text", "code", "sentence")


def print_sections(sections: Sequence[Section | Absent], console: Console) -> None:
    """Print the brief form of every section that has one, with an empty line around tables."""
    after_facts: bool | None = None  # nothing has been printed
    for section in sections:
        if isinstance(section, Absent):
            continue
        for part in _brief_parts(section, console.options.ascii_only):
            facts = isinstance(part, _Following)
            if after_facts is not None and not (facts and after_facts):
                console.print()
            console.print(part.grid if isinstance(part, _Following) else part)
            after_facts = facts


class _Following:
    """Facts that belong right beneath what was printed before them."""

    def __init__(self, grid: RichTable) -> None:
        self.grid = grid


def _brief_parts(section: Section, ascii_only: bool) -> Iterator[RenderableType | _Following]:
    if section.brief_title:
        yield Panel(
            Text(plain(section.title), style="bold"),
            title=Text(plain(section.short[:1].lower() + section.short[1:])),
        )
    for block in section.blocks:
        yield from _brief_block(block, ascii_only)


def _brief_block(block: Block, ascii_only: bool) -> Iterator[RenderableType | _Following]:
    if isinstance(block, Facts) and block.brief and block.facts:
        yield _Following(_facts_grid(block.facts))
    elif isinstance(block, Table) and block.brief_rows and block.rows:
        yield _table_grid(block, ascii_only)
    elif isinstance(block, Cards) and block.brief:
        cards = [Fact(card.label, f"{card.value}  {card.detail}".rstrip(), card.tone) for card in block.cards]
        yield _Following(_facts_grid(cards))
    elif isinstance(block, Notes) and block.brief:
        yield _Following(_facts_grid([Fact("note", sentence, "warn") for sentence in block.sentences]))
    elif isinstance(block, Findings) and block.findings:
        yield _findings_grid(block)


def _facts_grid(facts: Sequence[Fact]) -> RichTable:
    """Labels and texts; a label is written once, long texts go on under themselves."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(width=LABEL_CELLS, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    last = ""
    for fact in facts:
        label = "" if fact.label == last else plain(fact.label)
        grid.add_row(label, Text(plain(fact.text), style=_STYLES[fact.tone]))
        last = fact.label
    return grid


def _findings_grid(block: Findings) -> RichTable:
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(width=LABEL_CELLS, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for index, finding in enumerate(block.findings):
        gain = f" ({plain(finding.gain)})" if finding.gain else ""
        label = "advice" if index == 0 else ""
        grid.add_row(label, Text.assemble((plain(finding.title), "bold"), gain))
        for text, style in ((finding.evidence, ""), (finding.command, "cyan")):
            if text:
                grid.add_row("", Text(plain(text), style=style))
    return grid


def _table_grid(table: Table, ascii_only: bool) -> RichTable:
    left = len(table.rows) - table.brief_rows
    title = plain(table.caption) + (f" (first {table.brief_rows} of {len(table.rows)})" if left > 0 else "")
    grid = RichTable(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    shown = [index for index, column in enumerate(table.columns) if column.brief]
    for index in shown:
        words = table.columns[index].kind in _WORDS
        grid.add_column(
            plain(table.columns[index].title),
            justify="left" if words else "right",
            no_wrap=not words,
            overflow="fold",
        )
        if table.columns[index].bar:
            grid.add_column("")
    drawn = 0.0
    for number, row in enumerate(table.rows[: table.brief_rows]):
        cells: list[RenderableType] = []
        for index in shown:
            column, value = table.columns[index], row[index]
            indent = "  " * table.depth[number] if table.depth and index == shown[0] else ""
            cells.append(Text(indent + cell_of(value, column).text))
            if column.bar:
                is_part = bool(table.depth) and table.depth[number] > 0  # of a row above, which has the bar
                share = float(value) if isinstance(value, int | float) and not is_part else 0.0
                cells.append(Text(_bar_text(drawn, share, ascii_only)))
                drawn += share
        grid.add_row(*cells, style=_STYLES[table.tones[number]] if table.tones else "")
    return grid


def _bar_text(begin: float, share: float, ascii_only: bool) -> str:
    """A bar that begins where the one above it ended, so that one sees them add up."""
    start, end = (round(max(0.0, min(1.0, place)) * BAR_CELLS) for place in (begin, begin + share))
    return " " * start + ("#" if ascii_only else "█") * (end - start)
