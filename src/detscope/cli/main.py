"""The command `detscope`: its verbs and what they share. Verbs import what they need when they run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from detscope import __version__
from detscope.cli.data import data
from detscope.cli.doctor import doctor
from detscope.cli.examples import VERBS, examples_of
from detscope.cli.failures import run_guarded
from detscope.cli.groups import GroupedVerbs
from detscope.cli.measure.eval import evaluate
from detscope.cli.measure.infer import infer
from detscope.cli.measure.run import RunCommand, ScriptRequested, run, start
from detscope.cli.measure.train import train
from detscope.cli.measure.try_ import try_
from detscope.cli.measure.tune import tune
from detscope.cli.networks.fit import fit
from detscope.cli.networks.models import models
from detscope.cli.networks.predict import predict
from detscope.cli.networks.prune import prune
from detscope.cli.networks.score import score
from detscope.cli.networks.sweep import sweep
from detscope.cli.recorded.compare import compare
from detscope.cli.recorded.import_ import import_
from detscope.cli.recorded.mcp import mcp
from detscope.cli.recorded.report import report
from detscope.cli.recorded.runs import runs
from detscope.cli.recorded.schema import schema
from detscope.cli.recorded.show import show
from detscope.cli.recorded.why import why
from detscope.cli.signals import interrupted_once


class GuardedGroup(GroupedVerbs):
    """The group of verbs; every error leaves it as one or two lines on stderr and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a verb and end the process with its exit code, as click's own `main` does."""
        given = list(sys.argv[1:] if args is None else args)

        def run() -> object:
            return TyperGroup.main(self, given, prog_name, complete_var, False, windows_expand_args, **extra)

        if not standalone_mode:
            return run()
        sys.exit(run_guarded(run, given))


app = typer.Typer(
    name="detscope",
    cls=GuardedGroup,
    rich_markup_mode=None,  # plain help is three times faster: typer's rich help loads a Markdown parser
    help="Where every millisecond and megabyte of an object detector goes.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nTab completes verbs and options: detscope --install-completion",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"detscope {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  (its callback does the work)
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
    debug: Annotated[  # noqa: ARG001  (read by `failures` from the arguments, also when parsing fails)
        bool, typer.Option("--debug", help="Show tracebacks; DETSCOPE_DEBUG=1 does the same.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _add_verb(name: str, verb: Callable[..., None], **how: Any) -> None:
    app.command(name, short_help=VERBS[name].summary, epilog=examples_of(name), **how)(verb)


_add_verb("train", train)
_add_verb("infer", infer)
_add_verb("eval", evaluate)
_add_verb("run", run, cls=RunCommand, context_settings={"allow_interspersed_args": False})
_add_verb("import", import_)
app.add_typer(sweep, name="sweep", epilog=examples_of("sweep"))
_add_verb("show", show)
_add_verb("why", why)
_add_verb("report", report)
_add_verb("compare", compare)
_add_verb("runs", runs)
_add_verb("mcp", mcp)
_add_verb("try", try_)
_add_verb("tune", tune)
_add_verb("prune", prune)
_add_verb("predict", predict)
_add_verb("fit", fit)
_add_verb("score", score)
app.add_typer(data, name="data", epilog=examples_of("data"))
_add_verb("models", models)
_add_verb("doctor", doctor)
_add_verb("schema", schema)


def main(*, ends_process: bool = False) -> None:
    """The command `detscope`; `ends_process`: nothing comes after it."""
    try:
        with interrupted_once() if ends_process else nullcontext():
            app(prog_name="detscope")
    except ScriptRequested as request:
        requested = request
    start(requested)
