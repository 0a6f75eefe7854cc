"""`detscope score`: how wrong a predictor is on what it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, table_console


def score(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="CSVs of measured steps, a layers.json beside them."),
    ],
    target: Annotated[
        str, typer.Option("--target", metavar="LIST", help="memory, latency or both.")
    ] = "memory,latency",
    stage: Annotated[
        str, typer.Option("--stage", metavar="STAGE", help="training or inference.")
    ] = "training",
    method: Annotated[
        str, typer.Option("--method", metavar="LIST", help="auto, trees, physical, hybrid.")
    ] = "auto,trees",
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol", metavar="LIST", help="random-rows, unseen-levels, unseen-networks, unseen-families."
        ),
    ] = "unseen-levels,unseen-networks",
    json: JsonFlag = False,
) -> None:
    """Errors, intervals and out-of-memory decisions, with the noise of the data beside them."""
    from rich.table import Table

    from detscope.sessions.fit import run_score

    found = run_score(files, target, stage, method, protocol)
    if json:
        print_json(found)
        return
    table = Table(
        "target", "protocol", "method", "rows", "mean", "median", "p90", "in 10 %", "coverage", "width"
    )
    for row in found["scores"]:
        shares = (
            row["mean"],
            row["median"],
            row["p90"],
            row["within_10_percent"],
            row["coverage"],
            row["width"],
        )
        table.add_row(
            row["target"],
            row["protocol"],
            row["method"],
            str(row["rows"]),
            *(f"{100 * x:.1f} %" for x in shares),
        )
    console = table_console()
    console.print(table)
    for name, noise in found["noise_floor"].items():
        words = f"{100 * noise:.1f} %" if noise is not None else "cannot tell: nothing was measured twice"
        console.print(f"noise of the data, {name}: {words}")
    if found["decisions"]:
        made = found["decisions"]
        console.print(
            f"fits or not: {100 * made['right']:.1f} % right of {made['rows']}; {made['too_close']} too "
            f"close to call, plain answers {100 * made['plain_right']:.1f} % right, "
            f"{made['false_fits']} said to fit and did not"
        )
