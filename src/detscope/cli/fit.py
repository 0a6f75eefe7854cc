"""`detscope fit`: from measured steps to a model of the device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, table_console


def fit(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="CSVs of measured steps, a layers.json beside them."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the model goes.")],
    target: Annotated[
        str, typer.Option("--target", metavar="LIST", help="memory, latency or both.")
    ] = "memory,latency",
    stage: Annotated[
        str, typer.Option("--stage", metavar="STAGE", help="training or inference.")
    ] = "training",
    method: Annotated[
        str, typer.Option("--method", metavar="METHOD", help="auto, trees, physical or hybrid.")
    ] = "auto",
    json: JsonFlag = False,
) -> None:
    """Fit a model of a device; methods are chosen on networks and levels that were left out."""
    from detscope.sessions.fit import run_fit

    found = run_fit(files, out, target, stage, method)
    if json:
        print_json(found)
        return
    console = table_console()
    console.print(f"{found['rows']} rows of {len(found['networks'])} networks, data {found['fingerprint']}")
    for name, part in found["targets"].items():
        console.print(
            f"{name}: {part['near']} for seen networks, {part['far']} for others; mean errors left out:"
        )
        for situation, errors in part["left_out_errors"].items():
            words = ", ".join(f"{method} {100 * error:.1f} %" for method, error in errors.items())
            console.print(f"  {situation}: {words}")
    console.print(f"model: {found['model']}")
    console.print(f"next: detscope predict NETWORK --device-model {found['model']}")
