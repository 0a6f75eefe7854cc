"""`detscope predict`: what a network will cost before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, stdout_kept_clean, table_console


def predict(
    network: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK",
            help="A model, a network folder, file.py:factory, or a list of layers: FILE.json:NAME.",
        ),
    ],
    device_model: Annotated[
        Path | None, typer.Option("--device-model", metavar="FILE", help="A model by `detscope fit`.")
    ] = None,
    batch_sizes: Annotated[
        str, typer.Option("--batch-sizes", metavar="LIST", help="Images per step.")
    ] = "1,2,4,8,16,32,64,128",
    image_size: Annotated[
        int | None, typer.Option("--image-size", metavar="N", help="Pixels; else the network's own.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", metavar="SIZE", help="8GiB, 512MiB; else the device's.")
    ] = None,
    stage: Annotated[
        str, typer.Option("--stage", metavar="STAGE", help="training or inference.")
    ] = "training",
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="NAME", help="sgd (with momentum) or adam.")
    ] = "sgd",
    json: JsonFlag = False,
) -> None:
    """Latency and memory with 90 % intervals, what fits and which batch is best; no step is run."""
    from detscope.sessions.predict import PredictRequest, run_predict

    asked = PredictRequest(network, device_model, batch_sizes, memory_limit, image_size, stage, optimizer)
    with stdout_kept_clean(json):
        found = run_predict(asked)
    if json:
        print_json(found)
        return
    from detscope.report.terminal_predict import render

    render(found, table_console())
