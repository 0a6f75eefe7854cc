"""`detscope infer`: images through a detector, and where the time goes from the file to the boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.flags import (
    BadDataFlag,
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
    PassBatchSizeFlag,
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
from detscope.errors import UsageError

if TYPE_CHECKING:
    from detscope.config.load import LoadedSettings


def infer(
    model: ModelArgument = None,
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="IMAGES", help="Files, folders, globs or a data set; else generated images."),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="The model; then all arguments are images."),
    ] = None,
    config: ConfigFlag = None,
    overrides: OverridesFlag = None,
    data: DataFlag = None,
    on_bad_data: BadDataFlag = None,
    weights: WeightsFlag = None,
    image_size: ImageSizeFlag = None,
    limit: Annotated[str | None, typer.Option(metavar="N", help="Measure at most N images.")] = None,
    repeat: Annotated[str | None, typer.Option(metavar="N", help="Passes over the images.")] = None,
    batch_size: PassBatchSizeFlag = None,
    device: DeviceFlag = None,
    precision: PrecisionFlag = None,
    threads: ThreadsFlag = None,
    score: Annotated[
        str | None, typer.Option(metavar="S", help="Draw detections above it; else 0.7.")
    ] = None,
    level: LevelFlag = None,
    modules: ModulesFlag = None,
    memory: MemoryFlag = False,
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", metavar="NAME=PATH", help="Name a module or method() a stage; repeatable."),
    ] = None,
    tensorboard: TensorboardFlag = False,
    nsight: NsightFlag = None,
    window: WindowFlag = None,
    batch_sizes: BatchSizesFlag = None,
    out: OutFlag = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Pass images through a detector and show where the time goes, from the file to the boxes."""
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other", "leave one of them out")
    from detscope.config.load import load_settings

    model, given = _split(model, images or [], model_name)
    if data is not None and given:
        raise UsageError("--data and IMAGES exclude each other", "leave one of them out")
    flags: dict[str, object] = {
        "model.name": model,
        "model.weights": weights,
        "data.on_bad_data": on_bad_data,
        "model.image_size": image_size,
        "inference.images": given or (None if data is None else [data]),
        "inference.limit": limit,
        "inference.repeat": repeat,
        "inference.batch_size": batch_size,
        "inference.device": device,
        "inference.precision": precision,
        "inference.threads": threads,
        "inference.score": score,
        "inference.stages": stage or None,
        "inference.tensorboard": tensorboard or None,
        "record.level": level,
        "record.modules": modules,
        "record.memory": memory or None,
        "output.runs": out,
    }
    loaded = load_settings(config, overrides or (), flags)
    if verbose:
        say_settings(loaded)
    if nsight_asked(nsight, window, batch_sizes):
        measure_nsight(loaded, "infer", (nsight, window, batch_sizes), quiet=quiet, as_json=json)
        return
    run = _measure(loaded, quiet=quiet, keep_stdout_clean=json or quiet)
    found = read_finished(run)
    if quiet and not json:
        print(run)
    else:
        present(found, as_json=json)


def _split(model: str | None, images: list[str], named: str | None) -> tuple[str | None, list[str]]:
    """The first argument is the model, unless --model names it or the argument can only be images."""
    if model is None:
        return named, images
    if named is not None:
        return named, [model, *images]
    from detscope.sessions.infer.inference import names_images

    return (None, [model, *images]) if names_images(model) else (model, images)


def _measure(loaded: LoadedSettings, *, quiet: bool, keep_stdout_clean: bool) -> Path:
    from detscope.report.progress import make_progress

    progress = make_progress(quiet=quiet)
    for note in loaded.notes:
        progress.note(note)
    with stdout_kept_clean(keep_stdout_clean):
        from detscope.sessions.infer.inference import run_inference

        try:
            return run_inference(loaded.settings, progress=progress, notes=loaded.notes)
        finally:
            progress.finish()
