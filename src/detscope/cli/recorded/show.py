"""`detscope show`: the tables of a recorded run again; needs neither torch nor the machine it ran on."""

from __future__ import annotations

from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, present


def show(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Path, name or beginning of a name; else the latest run."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show a recorded run again, whole or partial."""
    from detscope.analyze.drawing import report_data
    from detscope.runs.folder import find_run
    from detscope.runs.reader import load_run

    present(report_data(load_run(find_run(run))), as_json=json)
