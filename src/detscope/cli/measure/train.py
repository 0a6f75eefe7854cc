"""`detscope train`: train a detector for real and show where each step's time goes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.flags import (
    BadDataFlag,
    CensusFlag,
    ConfigFlag,
    DataFlag,
    DeviceFlag,
    ImageSizeFlag,
    LevelFlag,
    MemoryFlag,
    ModelArgument,
    ModulesFlag,
    OutFlag,
    OverridesFlag,
    PrecisionFlag,
    QuietFlag,
    TensorboardFlag,
    ThreadsFlag,
    VerboseFlag,
    WeightsFlag,
)
from detscope.cli.measure.nsight import BatchSizesFlag, NsightFlag, WindowFlag
from detscope.cli.measure.nsight import asked as nsight_asked
from detscope.cli.measure.nsight import measure as measure_nsight
from detscope.cli.output import JsonFlag, present, read_finished, say_settings, stdout_kept_clean
from detscope.errors import MachineError, UnstableError, UsageError

if TYPE_CHECKING:
    from detscope.analyze.summary import RunSummary
    from detscope.config.load import LoadedSettings


def train(
    model: ModelArgument = None,
    config: ConfigFlag = None,
    overrides: OverridesFlag = None,
    data: DataFlag = None,
    on_bad_data: BadDataFlag = None,
    weights: WeightsFlag = None,
    batch_size: Annotated[str | None, typer.Option(metavar="N", help="Images per step.")] = None,
    image_size: ImageSizeFlag = None,
    num_workers: Annotated[str | None, typer.Option(metavar="N", help="Loader processes.")] = None,
    device: DeviceFlag = None,
    precision: PrecisionFlag = None,
    threads: ThreadsFlag = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Measured steps, warm-up apart.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar="N", help="Passes over the data.")] = None,
    eval_every: Annotated[
        str | None, typer.Option(metavar="K", help="Train for real: evaluate after every K-th pass.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on from the last checkpoint of this run.")
    ] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="Of weights, data and order.")] = None,
    level: LevelFlag = None,
    modules: ModulesFlag = None,
    memory: MemoryFlag = False,
    census: CensusFlag = False,
    out: OutFlag = None,
    tensorboard: TensorboardFlag = False,
    ranks: Annotated[
        str | None, typer.Option(metavar="N", help="Processes on this host, one CUDA device each.")
    ] = None,
    nodes: Annotated[str | None, typer.Option(metavar="N", help="Hosts; the same command on each.")] = None,
    rendezvous: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the nodes meet: one of them.")
    ] = None,
    try_variants: Annotated[
        str | None,
        typer.Option("--try", metavar="VARIANTS", help="Memory advice to verify: bf16,checkpoint,batch."),
    ] = None,
    nsight: NsightFlag = None,
    window: WindowFlag = None,
    batch_sizes: BatchSizesFlag = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 5 if the step times are unstable.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Train a detector and show where each step's time goes: phases, stages, modules, both directions."""
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other", "leave one of them out")
    from detscope.config.load import load_settings

    flags = {
        "model.name": model,
        "model.weights": weights,
        "model.image_size": image_size,
        "data.name": data,
        "data.on_bad_data": on_bad_data,
        "training.batch_size": batch_size,
        "training.num_workers": num_workers,
        "training.device": device,
        "training.precision": precision,
        "training.threads": threads,
        "training.steps": steps,
        "training.num_epochs": epochs,
        "training.seed": seed,
        "training.tensorboard": tensorboard or None,
        "training.ranks": ranks,
        "training.nodes": nodes,
        "training.rendezvous": rendezvous,
        "evaluation.every": eval_every,
        "record.level": level,
        "record.modules": modules,
        "record.memory": memory or None,
        "record.census": census or None,
        "output.runs": out,
    }
    if resume is not None:
        flags["training.resume"], config = _earlier_run(resume, config, out)
    loaded = load_settings(config, overrides or (), flags)
    if verbose:
        say_settings(loaded)
    if nsight_asked(nsight, window, batch_sizes):
        _one_process(loaded, "--nsight")
        measure_nsight(loaded, "train", (nsight, window, batch_sizes), quiet=quiet, as_json=json)
        return
    run = _measure(loaded, quiet=quiet, keep_stdout_clean=json or quiet, variants=try_variants)
    if run is None:
        print("done: rank 0 ran on another node and has the run", file=sys.stderr)
        return
    found = read_finished(run)
    if quiet and not json:
        print(run)
    else:
        present(found, as_json=json)
    _check_memory(found.summary)
    if strict:
        _check_stable(found.summary)


def _earlier_run(name: str, config: Path | None, out: str | None) -> tuple[str, Path]:
    """The run to go on from, as short as it can be said from here, and the settings it was made with."""
    from detscope.runs.folder import find_run

    if config is not None:
        raise UsageError("--resume and --config exclude each other", "a resumed run has its own settings")
    run = find_run(name, Path(out or "runs"))
    shortest = run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
    return str(shortest), run / "config.toml"


def _measure(
    loaded: LoadedSettings, *, quiet: bool, keep_stdout_clean: bool, variants: str | None = None
) -> Path | None:
    from detscope.report.progress import make_progress

    progress = make_progress(quiet=quiet)
    training = loaded.settings.training
    with stdout_kept_clean(keep_stdout_clean):
        try:
            if training.ranks * training.nodes > 1:
                from detscope.sessions.ranks.launch import run_ranks

                tried = ["--try"] if variants is not None else []
                return run_ranks(
                    loaded.settings, progress=progress, notes=loaded.notes, quiet=quiet, options=tried
                )
            from detscope.sessions.train.training import run_training

            if variants is None:
                return run_training(loaded.settings, progress=progress, notes=loaded.notes)
            from detscope.sessions.train.variants import train_and_try

            return train_and_try(loaded.settings, variants, progress=progress, notes=loaded.notes)
        finally:
            progress.finish()


def _one_process(loaded: LoadedSettings, flag: str) -> None:
    training = loaded.settings.training
    if training.ranks * training.nodes > 1:
        raise UsageError(f"{flag} measures one process, not ranks", "leave --ranks out")


def _check_memory(summary: RunSummary) -> None:
    """A run that ran out of memory was shown like any other; its exit code still says so."""
    out = summary.memory.oom if summary.memory else None
    if out is None:
        return
    place = ", ".join(part for part in (out.phase, out.module) if part)
    raise MachineError(
        f"out of memory{' in ' + place if place else ''}; what was recorded is in {summary.run}",
        out.command or out.why or "use a smaller --batch-size or --image-size",
    )


def _check_stable(summary: RunSummary) -> None:
    verdict, reason = summary.stability.verdict, summary.stability.reason
    if verdict in ("unstable", "error"):
        raise UnstableError(
            f"step times are {'unusable' if verdict == 'error' else 'unstable'}: {reason}",
            "let nothing else run, take more steps (--steps), or leave --strict out",
        )
    if verdict != "stable":
        print(f"note: --strict cannot judge: {verdict}: {reason}", file=sys.stderr)
