"""`detscope report`: a run as one offline HTML page, or as Markdown, JSON or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.errors import UsageError

FORMATS = ("html", "md", "json", "csv")


def report(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Path, name or beginning of a name; else the latest run."),
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="html, md, json or csv.")] = "html",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; else into the run's folder.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a run's report: one HTML file that opens anywhere, without a network."""
    if form not in FORMATS:
        raise UsageError(f"--format {form!r} is not one of {', '.join(FORMATS)}", "try --format html")
    from detscope.report.files import write_as
    from detscope.runs.folder import find_run

    path = write_as(find_run(run), form, out)
    print(path)
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
