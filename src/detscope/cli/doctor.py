"""`detscope doctor`: what this machine has, what it lacks, what that costs, what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from detscope.cli.output import JsonFlag, print_json, table_console
from detscope.errors import MachineError

if TYPE_CHECKING:
    from detscope.machine.doctor import MachineFinding

_MARKS = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "warning": "[yellow]warning[/]"}


def doctor(json: JsonFlag = False) -> None:
    """Examine this machine: versions, devices, memory, tools; what is missing and what to do."""
    from detscope.machine.doctor import examine_machine, torch_matches

    findings = examine_machine()
    if json:
        found = [asdict(finding) for finding in findings]
        print_json({"torch_matches": torch_matches(findings), "findings": found})
    else:
        _print_table(findings)
    if not torch_matches(findings):
        raise typer.Exit(MachineError.exit_code)


def _print_table(findings: list[MachineFinding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("what", "status", "found", box=None, pad_edge=False)
    for one in findings:
        table.add_row(escape(one.topic), _MARKS[one.status], escape(one.value))
    console = table_console()
    console.print(table)
    for one in findings:
        if one.status != "ok":
            console.print(f"\n[bold]{escape(one.topic)}[/]: {escape(one.value)}")
            console.print(f"  costs: {escape(one.cost)}\n  to do: {escape(one.remedy)}")
