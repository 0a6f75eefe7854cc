"""`detscope why`: what costs time in a run, at which line, and what to change; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope import __version__
from detscope.cli.output import JsonFlag, is_stdout, output_path, table_console
from detscope.errors import UsageError


def why(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Path, id, beginning or end of a name; else the latest run."),
    ] = None,
    json: JsonFlag = False,
    sarif: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all findings as SARIF 2.1.0 for code hosts; - is stdout."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many findings, however long; else 10 in 8 kB.")
    ] = None,
) -> None:
    """Tell what costs time in a run, at which line of code, and what to change."""
    if json and is_stdout(sarif):
        raise UsageError("--sarif - and --json exclude each other", "standard output can hold one of them")
    import shlex
    import sys

    from detscope.analyze.findings.listing import MOST_BYTES, USUAL, dump_line, list_findings
    from detscope.analyze.summary import summarize
    from detscope.runs.folder import find_run, short_name
    from detscope.runs.reader import load_run

    opened = load_run(find_run(run))
    summary = summarize(opened)
    if sarif is not None:
        from detscope.report.verbs.sarif import make_sarif
        from detscope.runs.atomic import write_text

        with output_path(sarif, ".sarif") as path:
            write_text(path, make_sarif(summary, opened.info, __version__))
        if is_stdout(sarif):
            return
    name, most_bytes = shlex.quote(short_name(opened.folder)), None if limit else MOST_BYTES
    told = list_findings(summary, name, limit or USUAL, most_bytes)
    if json:
        sys.stdout.write(dump_line(told).decode())
        return
    from detscope.report.verbs.findings import print_findings

    print_findings(told, summary, name, table_console(), most_bytes)
