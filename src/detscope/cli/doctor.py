"""`detscope doctor`: what this machine has, what it lacks, what that costs, what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.flags import DeviceFlag
from detscope.cli.output import JsonFlag, print_json, stdout_kept_clean, table_console
from detscope.errors import GateError, MachineError, UsageError

if TYPE_CHECKING:
    from detscope.machine.doctor import MachineFinding
    from detscope.sessions.selftest.session import SelfTest

_VERDICTS = {"right": "[green]right[/]", "wrong": "[red]wrong[/]", "cannot tell": "[yellow]cannot tell[/]"}
_MARKS = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "warning": "[yellow]warning[/]"}


def doctor(
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Record known work and compare; takes a minute.")
    ] = False,
    device: DeviceFlag = None,
    json: JsonFlag = False,
) -> None:
    """Examine this machine: versions, devices, memory, tools; what is missing and what to do."""
    if selftest:
        _test_itself(device or "auto", json)
        return
    if device is not None:
        raise UsageError("--device is for the self-test alone", "add --selftest")
    from detscope.machine.doctor import examine_machine, torch_matches

    findings = examine_machine()
    if json:
        found = [asdict(finding) for finding in findings]
        print_json({"torch_matches": torch_matches(findings), "findings": found})
    else:
        _print_table(findings)
    if not torch_matches(findings):
        raise typer.Exit(MachineError.exit_code)


def _test_itself(device: str, as_json: bool) -> None:
    from detscope.extras import require_package

    require_package("torch")
    from detscope.sessions.selftest.session import run_selftest

    with stdout_kept_clean(as_json):
        found = run_selftest(device, lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(found.as_dict())
    else:
        _print_rows(found)
    if found.wrong:
        raise GateError(
            f"{found.wrong} of {len(found.rows)} checks came out wrong on {found.device}",
            "paste the block above into an issue",
        )


def _print_rows(found: SelfTest) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("check", "verdict", "planted", "found", box=None, pad_edge=False)
    for row in found.rows:
        said = f"{row.found} ({row.why})" if row.why else row.found
        table.add_row(escape(row.name), _VERDICTS[row.verdict], escape(row.planted), escape(said))
    console = table_console()
    console.print(table)
    console.print(f"\nfor an issue, or docs/verified.md ({found.seconds:.0f} s):\n")
    typer.echo(found.write_block())


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
