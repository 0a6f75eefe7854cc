"""`detscope sweep`: run a plan of many trials; status, merge, export and import of their stores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detscope.cli.examples import examples_of
from detscope.cli.groups import WholeLinesGroup
from detscope.cli.networks.fit import WorkloadFlag
from detscope.cli.output import JsonFlag, is_stdout, output_path, print_json, show_sections
from detscope.errors import TrialsFailedError, UsageError

if TYPE_CHECKING:
    from detscope.report.model import Absent, Section

_ISOLATIONS = ("process", "batch")
_FORMATS = ("csv", "parquet", "older")


class PlanOrVerb(WholeLinesGroup):
    """`detscope sweep plan.toml` means `detscope sweep run plan.toml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` before what is not a verb."""
        first = next((arg for arg in args if not arg.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


sweep = typer.Typer(
    cls=PlanOrVerb,
    help="Run a plan of many trials: detscope sweep PLAN.toml; see also its verbs.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
StoreArgument = Annotated[Path, typer.Argument(metavar="DB", help="The store of a sweep.")]


@sweep.command(epilog=examples_of("sweep run"))
def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="TOML file with axes; see docs/sweeps.md.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show count, estimated time and disk; run nothing.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Run what the store does not have yet.")] = False,
    till_first_fail: Annotated[
        bool, typer.Option("--till-first-fail", help="After a failure, skip larger batches of that network.")
    ] = False,
    isolation: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="process: one per trial; batch: reused after ok."),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="ray, or ray://ADDRESS: trials as tasks of Ray.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where results go; else what the plan says.")
    ] = None,
    json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run a plan's trials, each in a process of its own, into one store; again: only what is missing."""
    if isolation is not None and isolation not in _ISOLATIONS:
        raise UsageError(
            f"--isolation {isolation!r} is not one of {', '.join(_ISOLATIONS)}", "try --isolation process"
        )
    if on is not None and on != "ray" and not on.startswith("ray://"):
        raise UsageError(f"--on {on!r} is neither ray nor ray://ADDRESS", "try --on ray")
    from detscope.report.sweep_progress import SweepLines
    from detscope.sessions.sweep import SweepOptions, describe_sweep, run_sweep
    from detscope.sweep.plan import load_plan

    loaded = load_plan(plan, store)
    if dry_run:
        import msgspec

        from detscope.analyze.sweep.figures import SweepForecast
        from detscope.report.verbs.sweep import forecast_sections

        found = msgspec.convert(describe_sweep(loaded), SweepForecast)
        if json:
            print_json(found)
        else:
            show_sections(forecast_sections(found))
        return
    options = SweepOptions(resume, till_first_fail, isolation, on)
    result = run_sweep(loaded, options, SweepLines(quiet=quiet))
    _present_sweep(loaded.store, result, json)
    if result["failed"]:
        raise TrialsFailedError(
            f"{result['failed']} of {result['planned']} trials failed",
            f"see them: detscope sweep status {loaded.store}",
        )


@sweep.command(epilog=examples_of("sweep status"))
def status(store: StoreArgument, json: JsonFlag = False) -> None:
    """Tell how far a sweep is and what it has measured; also while it runs."""
    from detscope.sweep.status import summarize_store
    from detscope.sweep.store import SweepStore

    with SweepStore(store) as opened:
        found = summarize_store(opened)
    _present_sweep(store, found, json)


@sweep.command(epilog=examples_of("sweep merge"))
def merge(
    stores: Annotated[list[Path], typer.Argument(metavar="DB...", help="Two or more stores.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The new store (-: standard output).")],
    json: JsonFlag = False,
) -> None:
    """Bring stores of several machines together; late duplicates are kept apart."""
    from dataclasses import asdict

    from detscope.sweep.exchange import merge_stores as merged

    with output_path(out, ".db") as path:
        done = merged(stores, path)
    if is_stdout(out):
        return
    if json:
        print_json({**asdict(done), "path": str(done.path)})
        return
    apart = f", {done.duplicates} duplicates kept apart" if done.duplicates else ""
    print(f"{done.rows} rows in {done.path}{apart}\nnext: detscope sweep status {done.path}")


@sweep.command(epilog=examples_of("sweep export"))
def export(
    store: StoreArgument,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="csv, parquet or older.")] = "csv",
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The file (-: standard output), or for older the folder."),
    ] = None,
) -> None:
    """Write the results as CSV, as Parquet, or as the files of the older toolflow."""
    if form not in _FORMATS:
        raise UsageError(f"--format {form!r} is not one of {', '.join(_FORMATS)}", "try --format csv")
    from detscope.sweep.exchange import export_rows as write

    if out is None or not is_stdout(out):
        print("\n".join(str(path) for path in write(store, form, out)))
        return
    if form == "older":
        raise UsageError("--out -: the older toolflow has several files", "name a folder")
    with output_path(out, f".{form}") as path:
        write(store, form, path)


@sweep.command("import", epilog=examples_of("sweep import"))
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files of the older toolflow, or their folders.")
    ],
    store: Annotated[Path, typer.Option(metavar="DB", help="The store they go to; made if not there.")],
    device: Annotated[str, typer.Option(metavar="NAME", help="The device they were measured on.")] = "older",
    stage: WorkloadFlag = "training",
    json: JsonFlag = False,
) -> None:
    """Read memory and latency files of the older toolflow into a store."""
    from detscope.sweep.exchange import import_older

    done = import_older(files, store, device, stage)
    if json:
        print_json(done)
        return
    print(f"{done['rows']} rows of {done['files']} files in {store}; {done['known']} were there already")
    print(f"next: detscope sweep status {store}")


def _present_sweep(store: Path, status: dict[str, Any], as_json: bool) -> None:
    """Show a sweep; what has just been run is drawn, too."""
    import msgspec

    from detscope.analyze.sweep.figures import summarize_sweep
    from detscope.report.verbs.sweep import place_sections, sweep_sections
    from detscope.sweep.store import read_rows

    summary = summarize_sweep(read_rows(store), status)
    sections = sweep_sections(summary)
    if summary.ran:
        folder = store.with_name(f"{store.stem}-pictures")
        summary = msgspec.structs.replace(summary, pictures=_draw_pictures(sections, folder))
    if as_json:
        print_json(summary)
    else:
        show_sections([*sections, *place_sections(summary)], more=f"detscope report {store} has every trial")


def _draw_pictures(sections: Sequence[Section | Absent], folder: Path) -> tuple[str, ...]:
    from detscope.extras import has_package

    if not has_package("matplotlib"):
        print("note: no pictures: pip install 'detscope[pictures]' draws them", file=sys.stderr)
        return ()
    from detscope.report.render.picture import write_chart_files

    return tuple(str(path) for path in write_chart_files(sections, folder))
