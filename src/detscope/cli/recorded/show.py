"""`detscope show`: a recorded run again, at a glance or by section; needs neither torch nor its machine."""

from __future__ import annotations

from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, present, table_console
from detscope.errors import UsageError


def show(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Path, id, beginning or end of a name; else the latest run."),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print sections whole: memory, or modules,operators, or all."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show a recorded run again: its first screen, or one section with every row."""
    if section is not None and json:
        raise UsageError("--section and --json exclude each other", "--json has every figure")
    from detscope.analyze.drawing import report_data
    from detscope.runs.folder import find_run
    from detscope.runs.reader import load_run

    data = report_data(load_run(find_run(run)))
    if section is None:
        present(data, as_json=json)
        return
    from detscope.report.render.terminal import print_whole
    from detscope.report.section_list import find_sections

    names = [name.strip().lower() for name in section.split(",") if name.strip()]
    print_whole(find_sections(data, names), table_console())
