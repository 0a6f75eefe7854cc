"""`detscope import`: files that other tools recorded, with the views of a run measured here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, present, print_json, read_finished, show_sections
from detscope.errors import InputError


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Kineto / Chrome traces, Nsight Systems SQLite, Nsight Compute CSV, memory snapshots.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for run folders; else runs.")
    ] = Path("runs"),
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Instead of the file's name.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Open files recorded elsewhere: how busy the device was, how well used, and who made it wait."""
    from detscope.sessions.importing import run_import

    imported = run_import(files, out, name, lambda text: print(text, file=sys.stderr))
    found = [read_finished(run) for run in imported.runs]
    if json:
        print_json(found[0].summary if len(found) == 1 else [data.summary for data in found])
    elif len(found) == 1:
        present(found[0], as_json=False)
    else:
        from detscope.analyze.run_list import list_runs
        from detscope.report.verbs.run_list import run_list_sections

        names = {run.name for run in imported.runs}
        made = [entry for entry in list_runs(out) if entry.name in names]
        show_sections(run_list_sections(made), more=f"detscope runs {out} has all of them")
    if imported.failures:
        first = imported.failures[0]
        raise InputError(
            f"{len(imported.failures)} of {len(files)} files could not be read: {first.message}", first.hint
        )
