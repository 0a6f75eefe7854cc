"""What verbs share about printing: JSON alone on stdout, tables for people, everything else on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from detscope.analyze.drawing import ReportData
    from detscope.config.load import LoadedSettings
    from detscope.report.model import Absent, Section

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]

SCREEN_LINES = 22  # of 25: a line of progress, a note and the prompt are on the same screen
_PIPE_BYTES = 4096


def print_json(value: object) -> None:
    """Print standard JSON on stdout."""
    from detscope.runs.standard_json import as_standard_json

    text = json.dumps(as_standard_json(value), indent=2, allow_nan=False) + "\n"
    # a pipe takes so little all or not at all; of more, Python without buffers loses what a stop cuts off
    for start in range(0, len(text), _PIPE_BYTES):
        sys.stdout.write(text[start : start + _PIPE_BYTES])


def table_console(*, to_stderr: bool = False) -> Console:
    """Where tables go: stdout, 100 columns wide where there is no terminal to ask."""
    from os import environ

    from rich.console import Console

    unknown_width = not (sys.stderr if to_stderr else sys.stdout).isatty() and "COLUMNS" not in environ
    return Console(width=100 if unknown_width else None, highlight=False, stderr=to_stderr)


def show_sections(
    sections: Sequence[Section | Absent],
    *,
    more: str = "the same command with | less, or --json, has every row",
    to_stderr: bool = False,
) -> None:
    """Print what sections tell in brief, on one screen of a terminal; `more` names the rest."""
    from detscope.report.render.terminal import print_sections

    console = table_console(to_stderr=to_stderr)
    print_sections(sections, console, most_lines=SCREEN_LINES if console.is_terminal else None, more=more)


def is_stdout(given: Path | str | None) -> bool:
    """Whether an output file is `-`: standard output."""
    return given is not None and str(given) == "-"


@contextmanager
def output_path(given: Path, suffix: str) -> Iterator[Path]:
    """Where to write a file; of `-` the file is made aside and then goes to standard output."""
    if not is_stdout(given):
        yield given
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="detscope-") as folder:
        path = Path(folder) / f"output{suffix}"
        yield path
        sys.stdout.flush()
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()


def check_picture(picture: Path | None, *, as_json: bool) -> None:
    """Refuse a picture that cannot be drawn or has no place, before anything is computed."""
    if picture is None:
        return
    from detscope.report.render.picture import check_picture_name

    if is_stdout(picture) and as_json:
        raise UsageError("--picture - and --json exclude each other", "standard output can hold one of them")
    check_picture_name(Path("picture.png") if is_stdout(picture) else picture)


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


def read_finished(run: Path) -> ReportData:
    """The figures of a run that has just ended."""
    from detscope.analyze.drawing import report_data
    from detscope.runs.reader import load_run

    return report_data(load_run(run), just_ended=True)


def present(data: ReportData, *, as_json: bool) -> None:
    """Show a run: as JSON, or its first screen."""
    if as_json:
        print_json(data.summary)
        return
    from detscope.report.first_screen import make_first_screen
    from detscope.report.render.screen import print_first_screen
    from detscope.report.sections import make_sections

    print_first_screen(make_first_screen(data, make_sections(data)[0]), table_console())
