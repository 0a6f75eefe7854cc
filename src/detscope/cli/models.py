"""`detscope models`: what can be measured; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, table_console
from detscope.errors import UsageError

if TYPE_CHECKING:
    from detscope.zoo.contract import ModelCard


def models(
    glob: Annotated[
        str | None, typer.Argument(metavar="[GLOB]", help="Only these, by name or family: 'tiny_*', '*rcnn*'.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the models: family, parameters, input size, licence of the weights."""
    from detscope.zoo.registry import list_cards

    cards = list_cards(glob)
    if not cards and glob is not None:
        raise UsageError(f"no model matches {glob!r}", f"try 'detscope models *{glob.strip('*')}*', or no pattern")
    if json:
        print_json([asdict(card) for card in cards])
    else:
        _print_table(cards)


def _print_table(cards: Sequence[ModelCard]) -> None:
    from rich.table import Table

    from detscope.report.figures import cell, count

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "family"):
        table.add_column(title, overflow="fold")
    for title in ("parameters", "input"):
        table.add_column(title, justify="right")
    table.add_column("licence of weights", overflow="fold")
    for card in cards:
        table.add_row(
            cell(card.name), cell(card.family), count(card.parameters), cell(card.input_size), cell(card.weights_licence)
        )
    console = table_console()
    console.print(table)
    console.print(f"\n{len(cards)} models; your own: detscope train path/to/file.py:factory", markup=False)
    if cards:
        console.print(f"next: detscope train {cards[-1].name} --steps 20", markup=False)
