"""What `train` and `infer` share about `--nsight`: its flags, its run, its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.output import print_json, show_sections, stdout_kept_clean
from detscope.errors import TrialsFailedError, UsageError

if TYPE_CHECKING:
    from detscope.config.load import LoadedSettings

NsightFlag = Annotated[
    str | None,
    typer.Option(metavar="TOOL", help="Run again under NVIDIA's tools: systems or compute."),
]
WindowFlag = Annotated[
    str | None,
    typer.Option(metavar="FIRST:END", help="With --nsight: steps to record; else 100:200, compute 1:2."),
]
BatchSizesFlag = Annotated[
    str | None, typer.Option(metavar="N,N", help="With --nsight: batch sizes, one after the other.")
]


def asked(nsight: str | None, window: str | None, batch_sizes: str | None) -> bool:
    """Whether `--nsight` is wanted; its companions mean nothing without it."""
    if nsight is None and (window is not None or batch_sizes is not None):
        flag = "--window" if window is not None else "--batch-sizes"
        raise UsageError(f"{flag} belongs to --nsight", "add --nsight systems or --nsight compute")
    return nsight is not None


def measure(
    loaded: LoadedSettings,
    verb: str,
    flags: tuple[str | None, str | None, str | None],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Record under the tool and show the table; batch sizes that failed are an error at the end."""
    from detscope.report.progress import make_progress
    from detscope.sessions.nsight import gather_nsight_figures, make_nsight_plan, run_under_nsight

    nsight, window, batch_sizes = flags
    section = loaded.settings.training if verb == "train" else loaded.settings.inference
    plan = make_nsight_plan(str(nsight), window, batch_sizes, section.batch_size)
    progress = make_progress(quiet=quiet)
    with stdout_kept_clean(as_json or quiet):
        try:
            trials = run_under_nsight(loaded.settings, verb, plan, progress=progress)
        finally:
            progress.finish()
    result = gather_nsight_figures(plan, trials)
    if as_json:
        print_json(result)
    elif quiet:
        print("\n".join(str(trial.run) for trial in trials if trial.run))
    else:
        from detscope.report.verbs.nsight import nsight_sections

        show_sections(nsight_sections(result))
    failed = [trial for trial in trials if trial.run is None]
    if failed:
        sizes = ", ".join(str(trial.batch_size) for trial in failed)
        raise TrialsFailedError(
            f"{len(failed)} of {len(trials)} batch sizes gave nothing: {sizes}", "their reasons are above"
        )
