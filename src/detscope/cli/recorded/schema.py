"""`detscope schema`: the JSON Schema of what `--json` prints and of run.json; needs no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from detscope.cli.output import print_json
from detscope.errors import UsageError


def schema(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="summary, run, sweep, findings or try.")],
) -> None:
    """Print the JSON Schema of a run's figures, of run.json, of a sweep's figures, of findings, of a try."""
    from detscope.analyze.schema import SUBJECTS, make_schema

    if subject not in SUBJECTS:
        raise UsageError(f"{subject!r} is not one of {', '.join(SUBJECTS)}", "try detscope schema summary")
    print_json(make_schema(subject))
