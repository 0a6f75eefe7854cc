"""`detscope infer`: images through a detector, and where the time goes from the file to the boxes."""

from __future__ import annotations

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
    PassBatchSizeFlag,
    QuietFlag,
    TensorboardFlag,
    VerboseFlag,
    WeightsFlag,
)
from detscope.cli.measure.nsight import NsightFlag, WindowFlag
from detscope.cli.measure.nsight import asked as nsight_asked
from detscope.cli.measure.nsight import measure as measure_nsight
from detscope.cli.output import (
    JsonFlag,
    present,
    print_json,
    read_finished,
    say_settings,
    show_sections,
    stdout_kept_clean,
)
from detscope.errors import TrialsFailedError, UsageError

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
    precision: Annotated[
        str | None,
        typer.Option(metavar="PRECISION", help="fp32, bf16 or fp16; several, with commas, are a scan."),
    ] = None,
    threads: Annotated[
        str | None, typer.Option(metavar="N", help="CPU threads; several, with commas, are a scan.")
    ] = None,
    score: Annotated[
        str | None, typer.Option(metavar="S", help="Draw detections above it; else 0.7.")
    ] = None,
    level: LevelFlag = None,
    modules: ModulesFlag = None,
    memory: MemoryFlag = False,
    census: CensusFlag = False,
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", metavar="NAME=PATH", help="Name a module or method() a stage; repeatable."),
    ] = None,
    tensorboard: TensorboardFlag = False,
    nsight: NsightFlag = None,
    window: WindowFlag = None,
    batch_sizes: Annotated[
        str | None, typer.Option(metavar="N,N", help="Scan batch sizes: one table, picture and CSV.")
    ] = None,
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
        "record.census": census or None,
        "output.runs": out,
    }
    if nsight is None and (batch_sizes or any("," in text for text in (threads or "", precision or ""))):
        if window is not None:
            raise UsageError("--window belongs to --nsight", "add --nsight systems or --nsight compute")
        lists = _split_lists(flags, batch_sizes)
        choices = [load_settings(config, overrides or (), {**flags, **one}) for one in lists]
        if verbose:
            say_settings(choices[0])
        _scan(choices, quiet=quiet, as_json=json)
        return
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


def _split_lists(flags: dict[str, object], batch_sizes: str | None) -> list[dict[str, object]]:
    """Every combination of what was given with commas, as flags of one run; twice the same is once."""
    from itertools import product

    if batch_sizes is not None and flags["inference.batch_size"] is not None:
        raise UsageError("--batch-size and --batch-sizes exclude each other", "leave one of them out")
    given = {
        "inference.precision": flags["inference.precision"],
        "inference.threads": flags["inference.threads"],
        "inference.batch_size": batch_sizes or flags["inference.batch_size"],
    }
    lists = []
    for key, text in given.items():
        parts = dict.fromkeys(part.strip() for part in str(text).split(",")) if text is not None else (None,)
        if "" in parts:
            raise UsageError(f"{text!r} has an empty place between its commas", "as in 1,2,4")
        lists.append([(key, part) for part in parts])
    return [dict(choice) for choice in product(*lists)]


def _scan(choices: list[LoadedSettings], *, quiet: bool, as_json: bool) -> None:
    """Measure all combinations, write table, picture and page, show the table."""
    from detscope.report.progress import make_progress
    from detscope.report.verbs.scan import scan_sections, write_scan, write_scan_csv
    from detscope.sessions.infer.scan import run_scan, scan_folder

    progress, first = make_progress(quiet=quiet), choices[0].settings
    folder = scan_folder(first.output.runs, first.model.name)
    with stdout_kept_clean(as_json or quiet):
        try:
            scan = run_scan(
                [one.settings for one in choices],
                progress=progress,
                notes=choices[0].notes,
                keep=lambda known: write_scan_csv(known, folder),
            )
        finally:
            progress.finish()
    paths = write_scan(scan, folder)
    if as_json:
        print_json(scan)
    elif quiet:
        print(paths[0])
    else:
        show_sections(scan_sections(scan))
        print("\n".join(f"{path.suffix[1:]:12} {path}" for path in paths))
    failed = [row for row in scan.rows if row.run is None]
    if failed:
        many = f"{len(failed)} of {len(scan.rows)} combinations gave nothing"
        raise TrialsFailedError(many, "their reasons are in the table")


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
