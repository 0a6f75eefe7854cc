"""`detscope run`: a training script as it is, recorded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from detscope.cli.flags import CensusFlag, MemoryFlag
from detscope.errors import UsageError

if TYPE_CHECKING:
    from detscope.record.script.options import ScriptOptions
    from detscope.sessions.run.script import ScriptTarget


@dataclass
class ScriptRequested(BaseException):
    """A script is to be run; raised through the command line, so that the script is not below it."""

    target: ScriptTarget
    options: ScriptOptions
    quiet: bool
    json_file: Path | None
    seed: int | None = None


class RunCommand(TyperCommand):
    """Options end where the script begins; what follows is the script's, as with `python` itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let nothing behind `-m MODULE` be taken for an option of ours."""
        return super().parse_args(ctx, self._with_end_of_options(ctx, list(args)))

    def _with_end_of_options(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            name
            for param in self.get_params(ctx)
            if not getattr(param, "is_flag", True)
            for name in param.opts
        }
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] not in ("-", "--"):
            args[position] = self._spell_json(args[position], args[position + 1 : position + 2])
            if args[position] == "-m":
                return [*args[: position + 2], "--", *args[position + 2 :]]
            position += 2 if args[position] in with_value else 1
        return args

    @staticmethod
    def _spell_json(option: str, following: list[str]) -> str:
        """`--json FILE` was how `--json-file FILE` was spelled; no script ends in .json."""
        if option.startswith("--json="):
            return f"--json-file={option.removeprefix('--json=')}"
        names_file = following and following[0].endswith(".json")
        return "--json-file" if option == "--json" and names_file else option


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="A Python file (-: from stdin), an installed command or a module, and its own arguments.",
        ),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module instead of a file.")
    ] = None,
    level: Annotated[str, typer.Option(metavar="LEVEL", help="phases, modules or ops.")] = "modules",
    memory: MemoryFlag = False,
    census: CensusFlag = False,
    window: Annotated[
        str | None, typer.Option(metavar="FIRST:END", help="Steps of the script to record; else all.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="N", help="Stop the script after N recorded steps.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=2**32 - 1,
            help="Seed random, numpy and torch before the script's first line.",
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for run folders; else runs.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output, after what the script prints.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json-file", metavar="FILE", help="Write it into FILE instead (-: standard output)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Write nothing of our own to stderr.")] = False,
) -> None:
    """Run a training script as it is and show where its time goes; its output and exit code stay its own."""
    from detscope.extras import require_package
    from detscope.record.script.options import make_options
    from detscope.sessions.run.script import find_target

    given = command or []
    if module is None and not given:
        raise UsageError("no script", "detscope run SCRIPT [ARGS]..., or detscope run -m MODULE [ARGS]...")
    name, arguments = (module, given) if module is not None else (given[0], given[1:])
    target = find_target(name, tuple(arguments), is_module=module is not None)
    target_file = _find_json_file(json, json_file)
    require_package("torch")  # here: the script's own failure to import it would be a traceback
    options = make_options(
        out=out,
        level=level,
        memory=memory,
        census=census,
        window=window,
        max_steps=max_steps,
        script=name if target.is_module else Path(name).name,
        command=target.command,
    )
    raise ScriptRequested(target, options, quiet, target_file, seed)


def _find_json_file(json: bool, json_file: Path | None) -> Path | None:
    """Where the figures go: `-` is standard output; a file by its whole path, as a script may move."""
    if json_file is None or str(json_file) == "-":
        return Path("-") if json or json_file is not None else None
    whole = json_file.absolute()
    if not whole.parent.is_dir():
        raise UsageError(f"--json-file {json_file}: there is no folder {whole.parent}", "make it first")
    return whole


def start(request: ScriptRequested) -> None:
    """Run the script outside of the command line's own handling of errors and signals."""
    from detscope.sessions.run.watch import run_script

    sys.excepthook = sys.__excepthook__  # typer has put its own there
    if request.seed is not None:
        from detscope.sessions.run.script import seed_everything

        seed_everything(request.seed)
    run_script(request.target, request.options, quiet=request.quiet, json_file=request.json_file)
