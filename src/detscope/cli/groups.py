"""Lists of verbs in help: whole lines, and those of the command itself in groups."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from detscope.cli.examples import GROUPS, VERBS


class WholeLinesGroup(TyperGroup):
    """A group whose verbs are listed with their whole first sentence, however narrow the terminal is."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Let lines go on beneath instead of cutting them."""
        rows = [(name, _first_paragraph(self.commands[name].help)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class GroupedVerbs(TyperGroup):
    """The verbs by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List each with a line of its own."""
        for group in GROUPS:
            rows = [
                (name, VERBS[name].summary) for name in self.list_commands(ctx) if VERBS[name].group == group
            ]
            with formatter.section(group.capitalize()):
                formatter.write_dl(rows)


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())
