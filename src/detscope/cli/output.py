"""What verbs share about printing: JSON alone on stdout, tables for people, everything else on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from detscope.config.load import LoadedSettings

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]

_PIPE_BYTES = 4096


def print_json(value: object) -> None:
    """Print standard JSON on stdout."""
    from detscope.runs.standard_json import as_standard_json

    text = json.dumps(as_standard_json(value), indent=2, allow_nan=False) + "\n"
    # a pipe takes so little all or not at all; of more, Python without buffers loses what a stop cuts off
    for start in range(0, len(text), _PIPE_BYTES):
        sys.stdout.write(text[start : start + _PIPE_BYTES])


def table_console() -> Console:
    """Where tables go: stdout, 100 columns wide where there is no terminal to ask."""
    from os import environ

    from rich.console import Console

    unknown_width = not sys.stdout.isatty() and "COLUMNS" not in environ
    return Console(width=100 if unknown_width else None, highlight=False)


@contextmanager
def stdout_kept_clean(wanted: bool) -> Iterator[None]:
    """Send what others print (a user's model, a library) to stderr while the block runs, if wanted."""
    if not wanted:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def log_to_stderr() -> None:
    """Show the package's log lines on stderr (`-v`)."""
    logger = logging.getLogger("detscope")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


def say_settings(loaded: LoadedSettings) -> None:
    """Where each setting came from, on stderr (`-v`)."""
    log_to_stderr()
    for dotted, origin in loaded.origins.items():
        section, _, key = dotted.partition(".")
        value = getattr(getattr(loaded.settings, section), key)
        print(f"setting: {dotted} = {value!r} ({origin})", file=sys.stderr)


def finished(run: Path) -> dict[str, Any]:
    """The figures of a run that has just ended; its report is written beside its tables."""
    from detscope.analyze.summary import summarize

    summary = summarize(run)
    if (run / "run.json").is_file():
        from detscope.report.pages.run import report_of

        summary.setdefault("files", {})["report"] = str(report_of(run, summary))
    return summary


def present(summary: Mapping[str, Any], *, as_json: bool, after_training: bool) -> None:
    """Show a run's summary: as JSON, or as tables."""
    if as_json:
        print_json(summary)
        return
    from detscope.report.terminal import render

    render(summary, table_console(), after_training=after_training)
