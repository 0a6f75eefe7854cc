"""A process that runs commands of detscope one after the other, within a limit of memory.

Reads a list of arguments per line; answers with a line of exit code, stdout's and stderr's ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys

KEPT = 4000


def main() -> None:
    """Until stdin ends; answers go to the stdout that was there at the beginning."""
    limit = int(os.environ.get("MUTATED_BYTES", str(2 << 30)))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # what it writes to; libraries are only mapped
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(run_command(json.loads(line))), file=answers, flush=True)


def run_command(arguments: list[str]) -> dict[str, object]:
    """One command as the command line runs it."""
    from detscope.cli.main import app

    out, told = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        try:
            app(arguments, prog_name="detscope")
        except SystemExit as ending:
            code = ending.code or 0
        except BaseException as error:  # what a person would see as a traceback
            code = f"Traceback: {type(error).__name__}: {error}"
    return {"code": code, "out": out.getvalue()[-KEPT:], "told": told.getvalue()[-KEPT:]}


if __name__ == "__main__":
    main()
