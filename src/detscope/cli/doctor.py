"""`detscope doctor`: what this machine has, what it lacks, what that costs, what to do."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.errors import MachineError

if TYPE_CHECKING:
    from detscope.machine.doctor import Finding

_MARKS = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "warning": "[yellow]warning[/]"}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")] = False,
) -> None:
    """Examine this machine: versions, devices, memory, tools; what is missing and what to do."""
    from detscope.machine.doctor import examine, torch_matches

    findings = examine()
    if json:
        answer = {"torch_matches": torch_matches(findings), "findings": [asdict(one) for one in findings]}
        sys.stdout.write(json_format.dumps(answer, indent=2) + "\n")
    else:
        _print_table(findings)
    if not torch_matches(findings):
        raise typer.Exit(MachineError.exit_code)


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("what", "status", "found", box=None, pad_edge=False)
    for one in findings:
        table.add_row(one.topic, _MARKS[one.status], escape(one.value))
    console = Console()
    console.print(table)
    for one in findings:
        if one.status != "ok":
            console.print(f"\n[bold]{one.topic}[/] {escape(one.value)}", highlight=False)
            console.print(f"  costs: {escape(one.cost)}\n  to do: {escape(one.remedy)}", highlight=False)
