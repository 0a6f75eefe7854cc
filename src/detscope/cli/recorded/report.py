"""`detscope report`: a run or a sweep as one offline HTML page; a run also as Markdown, JSON or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import is_stdout, output_path
from detscope.errors import UsageError

FORMATS = ("html", "md", "json", "csv")


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Path, id or part of a name, or a sweep's store; else the latest run."
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="html, md, json or csv.")] = "html",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it (-: standard output); else into the run."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown, as --format md --out FILE does.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page, as --format html --out FILE does.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write the report of a run, or of a sweep: one HTML file that opens anywhere, without a network."""
    if form not in FORMATS:
        raise UsageError(f"--format {form!r} is not one of {', '.join(FORMATS)}", "try --format html")
    named = [(kind, file) for kind, file in (("md", markdown), ("html", html)) if file is not None]
    if named and out is not None:
        raise UsageError("--out goes with --format", "leave --out out, or --markdown and --html")
    targets: list[tuple[str, Path | None]] = [*named] if named else [(form, out)]
    if show and any(is_stdout(file) for _, file in targets):
        raise UsageError("--open needs a file", "leave - out")
    for kind, file in targets:
        if file is not None and is_stdout(file):
            with output_path(file, f".{kind}") as path:
                _write_report(run, kind, path)
            continue
        path = _write_report(run, kind, file)
        print(path)
        if show:
            import webbrowser

            webbrowser.open(path.resolve().as_uri())


def _write_report(run: str | None, form: str, out: Path | None) -> Path:
    return _of_sweep(Path(run), form, out) if run and Path(run).is_file() else _of_run(run, form, out)


def _of_run(run: str | None, form: str, out: Path | None) -> Path:
    from detscope.report.files import write_report
    from detscope.runs.folder import find_run

    return write_report(find_run(run), form, out)


def _of_sweep(store: Path, form: str, out: Path | None) -> Path:
    if form != "html":
        raise UsageError(
            f"--format {form}: a sweep's report is a page",
            f"detscope sweep export {store} writes its figures",
        )
    from detscope.analyze.sweep.figures import summarize_sweep
    from detscope.report.verbs.sweep import write_sweep_page
    from detscope.sweep.status import summarize_store
    from detscope.sweep.store import SweepStore, read_rows

    with SweepStore(store) as opened:
        status = summarize_store(opened)
    return write_sweep_page(summarize_sweep(read_rows(store), status), store, out)
