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
    from detscope.analyze.summary import summarize
    from detscope.runs.folder import find_run

    present(summarize(find_run(run)), as_json=json, after_training=False)
