"""Sections as Markdown; names stay names, whatever they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detscope.report.figures import plain
from detscope.report.model import Block, Cards, Facts, Findings, Notes, Section, Table
from detscope.report.render.cells import cell_of

MOST_ROWS = 40


def name_cell(value: str | float | None) -> str:
    """A name as code: Markdown and HTML in it are inert. What could end it is replaced."""
    text = plain(value).replace("`", "'").replace("|", "¦").strip()
    return f"`{text}`" if text else ""


def sentence(value: str | float | None) -> str:
    """A sentence whose words may come from outside."""
    text = plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{char}" if char in "\\`*_[]#|!" else char for char in text)


def sections_markdown(
    sections: Sequence[Section], *, brief: bool = False, most_rows: int | None = MOST_ROWS
) -> str:
    """Sections one beneath the other; the brief form tells what a terminal tells."""
    parts = []
    for section in sections:
        parts += [f"## {sentence(section.title)}", sentence(section.definition)]
        for block in section.blocks:
            parts += _block_parts(block, brief, most_rows)
    return "\n\n".join(part for part in parts if part) + "\n"


def _block_parts(block: Block, brief: bool, most_rows: int | None) -> Iterator[str]:
    if isinstance(block, Cards) and not brief:
        for card in block.cards:
            yield f"- {sentence(card.label)}: **{sentence(card.value)}** {sentence(card.detail)}"
    elif isinstance(block, Facts) and (block.brief if brief else block.full):
        for fact in block.facts:
            yield f"- {sentence(fact.label)}: {sentence(fact.text)}"
    elif isinstance(block, Findings) and (block.brief or not brief):
        for finding in block.findings:
            yield f"1. **{sentence(finding.title)}** {sentence(finding.told)}"
    elif isinstance(block, Notes):
        for text in block.sentences:
            yield f"- {sentence(text)}"
    elif isinstance(block, Table) and block.rows and (block.brief_rows if brief else block.full):
        yield _block_table(block, brief, block.brief_rows if brief else most_rows)


def _block_table(block: Table, brief: bool, most_rows: int | None) -> str:
    shown = [index for index, column in enumerate(block.columns) if column.brief or not brief]
    words = [block.columns[index].kind in ("text", "code", "sentence") for index in shown]
    lines = [[sentence(block.columns[index].title) for index in shown]]
    lines.append(["---" if is_word else "---:" for is_word in words])
    for row in block.rows[:most_rows]:
        texts = [cell_of(row[index], block.columns[index]).text for index in shown]
        lines.append([name_cell(text) if word else text for text, word in zip(texts, words, strict=True)])
    return "\n".join([f"{sentence(block.caption)}\n", *(f"| {' | '.join(line)} |" for line in lines)])
