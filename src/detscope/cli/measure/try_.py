"""`detscope try`: a change of a run, tried and judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.flags import OverridesFlag
from detscope.cli.output import JsonFlag, print_json, show_sections, stdout_kept_clean
from detscope.errors import GateError, UnstableError, UsageError


def try_(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of `run`, `train` or `infer`.")],
    patch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A unified diff, applied to a copy of the code.")
    ] = None,
    overrides: OverridesFlag = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable; repeatable.")
    ] = None,
    finding: Annotated[
        str | None, typer.Option(metavar="ID", help="What it is about; without --patch, its own diff.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed random, numpy and torch before a script starts.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Steps of each process (infer: images); else as the run.")
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", help="Pairs of processes at most.")] = 12,
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long to try: 90s, 5m, 1h.")] = "5m",
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="Results that differ by less are equal; inf: unchecked.")
    ] = 1e-4,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a pull request's body; -: print it.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for the try's own folder.")] = "runs",
    json: JsonFlag = False,
) -> None:
    """Try a change of a run's command: with and without it, by turns, until the interval decides."""
    from detscope.extras import require_package
    from detscope.report.progress import make_progress
    from detscope.report.verbs.trying import try_body, try_sections
    from detscope.runs.atomic import write_text
    from detscope.runs.folder import find_run
    from detscope.sessions.trying.processes import parse_budget
    from detscope.sessions.trying.session import TryRequest, check_request, run_try

    if json and markdown == "-":
        raise UsageError("--markdown - and --json both want standard output", "give --markdown a file")
    request = TryRequest(
        run=find_run(run),
        patch=patch,
        settings=tuple(overrides or ()),
        environment=tuple(env or ()),
        finding=finding,
        seed=seed,
        steps=steps,
        rounds=rounds,
        budget_s=parse_budget(budget),
        tolerance=tolerance,
        out=Path(out),
    )
    check_request(request)
    require_package("torch")  # of the processes: their failure would be a line in a log
    with stdout_kept_clean(True):
        result = run_try(request, make_progress())
    if markdown == "-":
        sys.stdout.write(try_body(result))
    elif markdown is not None:
        write_text(Path(markdown), try_body(result))
    if json:
        print_json(result)
    elif markdown != "-":
        show_sections(try_sections(result))
    if result.verdict == "reject":
        raise GateError(f"rejected: {result.why}", f"output and runs of both sides: {result.folder}")
    if result.verdict == "undecided":
        raise UnstableError(f"undecided: {result.why}", f"output and runs of both sides: {result.folder}")
