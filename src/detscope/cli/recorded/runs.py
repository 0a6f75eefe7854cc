"""`detscope runs`: what is in a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, table_console


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of run folders.")] = Path("runs"),
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Only models whose name has it.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="Only runs on it.")] = None,
    since: Annotated[str | None, typer.Option(metavar="DATE", help="Only runs from this day on.")] = None,
    sort: Annotated[
        str, typer.Option(metavar="KEY", help="time, ms, model, device, status or verb.")
    ] = "time",
    json: JsonFlag = False,
) -> None:
    """List recorded runs, the newest first: an id that every verb takes, and what each cost."""
    from detscope.analyze.run_list import list_runs
    from detscope.errors import InputError
    from detscope.report.verbs.run_list import run_list_sections
    from detscope.runs.folder import MAKE_A_RUN

    if not folder.exists():
        raise InputError(f"no run in {folder}: there is no such folder", MAKE_A_RUN)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "give the folder that holds run folders, such as runs")
    rows = list_runs(folder, model=model, device=device, since=since, sort=sort)
    if json:
        print_json(rows)
    else:
        from detscope.report.render.terminal import print_sections

        print_sections(run_list_sections(rows), table_console())  # a list is as long as it is
