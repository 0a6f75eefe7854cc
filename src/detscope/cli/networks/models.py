"""`detscope models`: what can be measured; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from string import ascii_lowercase
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, table_console
from detscope.errors import UsageError

if TYPE_CHECKING:
    from detscope.zoo.contract import ModelCard


def models(
    glob: Annotated[
        str | None, typer.Argument(metavar="GLOB", help="Only these, by name or family: 'tiny_*', '*rcnn*'.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the models: family, parameters, input size, licence of the weights."""
    from detscope.zoo.registry import list_cards

    cards = list_cards(glob)
    if not cards:
        wider = f"*{(glob or '').strip('*')}*"
        hint = f"did you mean '{wider}'?" if list_cards(wider) else "`detscope models` lists all"
        raise UsageError(f"no model matches {glob!r}", hint)
    if json:
        print_json([asdict(card) for card in cards])
    else:
        _print_table(cards)


def _print_table(cards: Sequence[ModelCard]) -> None:
    from rich.table import Table

    from detscope.report.figures import cell, count

    # Licences are long and few: a letter in the table, the words below it.
    licences = dict.fromkeys(card.weights_licence for card in cards)
    letters = dict(zip((licence for licence in licences if licence != "none"), ascii_lowercase, strict=False))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "family"):
        table.add_column(title, overflow="fold")
    for title in ("parameters", "input", "weights"):
        table.add_column(title, justify="right")
    for card in cards:
        letter = letters.get(card.weights_licence, card.weights_licence)
        table.add_row(
            cell(card.name), cell(card.family), count(card.parameters), cell(card.input_size), cell(letter)
        )
    console = table_console()
    console.print(table)
    for licence, letter in letters.items():
        console.print(f"\nlicence of weights ({letter}): {licence}", markup=False, end="")
    for note in dict.fromkeys(card.note for card in cards if card.note):
        names = ", ".join(card.name for card in cards if card.note == note)
        console.print(f"\nnote ({names}): {note}", markup=False, end="")
    example = next((card for card in cards if card.source == "tiny"), cards[0])
    console.print(f"\n\n{len(cards)} models; your own: detscope train path/to/file.py:factory", markup=False)
    console.print(f"next: detscope train {example.name} --steps 20", markup=False)
