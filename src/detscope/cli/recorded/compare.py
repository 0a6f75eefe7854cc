"""`detscope compare`: runs against a base, or two commands in turns; with statistics, a gate for CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, show_sections
from detscope.errors import GateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detscope.analyze.compare.gate import Gate
    from detscope.analyze.compare.runs import ComparisonResult

_EXAMPLE = "detscope compare --repeat 5 -- detscope train A -- detscope train B"


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The run to compare with.")],
    others: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="One or more later runs; several are shown as a trend, too."),
    ],
    repeat: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Run two commands at most N times each instead: -- COMMAND_A -- COMMAND_B."
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --repeat: stop after this time, such as 10m.")
    ] = None,
    by: Annotated[str, typer.Option(metavar="ORDER", help="Of a trend: time or commit.")] = "time",
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE",
            help="Exit 7 if it holds, or if the figure is missing: 'step_p50 > +5%', 'stage.rpn > 3ms'. "
            "Names: step_p50, step_p95, images_per_s, and phase. stage. module. operator. kernel. device. "
            "memory. accuracy. with a name behind the dot.",
        ),
    ] = None,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a pull-request comment; -: print it.")
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write an offline HTML page; -: print it.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A gate that cannot be told from noise fails too.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Compare runs: what differs, what changed by how much, and whether that can be told from noise."""
    from detscope.analyze.compare.gate import parse_gate

    gates = [parse_gate(text) for text in fail_if or ()]
    printed = [name for name, given in (("--markdown", markdown), ("--html", html)) if given == "-"]
    printed += ["--json"] if json else []
    if len(printed) > 1:
        raise UsageError(f"{' and '.join(printed)} both want standard output", "give one of them a file")
    if repeat is not None:
        result = _repeat_commands([base, *others], repeat, budget, gates)
    elif budget is not None:
        raise UsageError("--budget is for --repeat", _EXAMPLE)
    else:
        result = _compare_folders(base, others, gates, by)
    _write_outputs(result, markdown, html)
    if json:
        print_json(result)
    elif not printed:
        from detscope.report.verbs.comparison import comparison_sections

        show_sections(comparison_sections(result))
    broken = [*result.failed, *(result.undecided_gates if strict else ())]
    if broken:
        raise GateError(f"gate failed: {'; '.join(broken)}", "see the rows above for where the change is")


def _compare_folders(base: str, others: Sequence[str], gates: Sequence[Gate], by: str) -> ComparisonResult:
    from detscope.analyze.compare.runs import compare_runs
    from detscope.runs.folder import find_run
    from detscope.runs.reader import load_run

    if by not in ("time", "commit"):
        raise UsageError(f"--by {by!r} is neither time nor commit", "try --by commit")
    runs = [load_run(find_run(name)) for name in (base, *others)]
    return compare_runs(runs[0], runs[1:], gates, "commit" if by == "commit" else "time")


def _repeat_commands(
    words: Sequence[str], repeat: int, budget: str | None, gates: Sequence[Gate]
) -> ComparisonResult:
    from detscope.analyze.compare.runs import gather_comparisons
    from detscope.report.progress import make_progress
    from detscope.runs.reader import load_run
    from detscope.sessions.repeat import RepeatRequest, repeat_commands, split_commands
    from detscope.sessions.trying.processes import parse_budget

    first, second = split_commands(words)
    request = RepeatRequest(first, second, repeat, parse_budget(budget) if budget else None)
    found = repeat_commands(request, make_progress())
    return gather_comparisons(load_run(found.runs_before[0]), [found], gates)


def _write_outputs(result: ComparisonResult, markdown: str | None, html: str | None) -> None:
    """Before any gate: who is stopped by one needs them most."""
    from detscope.report.verbs.comparison import comparison_page
    from detscope.report.verbs.comparison_markdown import comparison_comment
    from detscope.runs.atomic import write_text

    for place, make in ((markdown, comparison_comment), (html, comparison_page)):
        if place == "-":
            sys.stdout.write(make(result))
        elif place is not None:
            write_text(Path(place), make(result))
