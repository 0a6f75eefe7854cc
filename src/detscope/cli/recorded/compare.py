"""`detscope compare`: runs against a base, with statistics; a gate for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, show_sections
from detscope.errors import GateError


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The run to compare with.")],
    others: Annotated[list[str], typer.Argument(metavar="RUN...", help="One or more later runs.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="GATE", help="Exit 7 if it holds: 'step_p50 > +5%', 'stage.rpn > 3ms'."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown for a pull request.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an offline HTML page.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A gate that cannot be told from noise fails too.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Compare runs: what differs, what changed by how much, and whether that can be told from noise."""
    from detscope.analyze.compare.gate import parse_gate
    from detscope.analyze.compare.runs import compare_runs
    from detscope.report.render.markdown import sections_markdown
    from detscope.report.verbs.comparison import comparison_page, comparison_sections
    from detscope.runs.atomic import write_text
    from detscope.runs.folder import find_run
    from detscope.runs.reader import load_run

    gates = [parse_gate(text) for text in fail_if or ()]
    runs = [load_run(find_run(name)) for name in (base, *others)]
    result = compare_runs(runs[0], runs[1:], gates)
    if markdown is not None:
        write_text(markdown, sections_markdown(comparison_sections(result), brief=True))
    if html is not None:
        write_text(html, comparison_page(result))
    if json:
        print_json(result)
    else:
        show_sections(comparison_sections(result))
    broken = [*result.failed, *(result.undecided_gates if strict else ())]
    if broken:
        raise GateError(f"gate failed: {'; '.join(broken)}", "see the rows above for where the change is")
