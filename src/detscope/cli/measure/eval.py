"""`detscope eval`: how accurate a detector is, or a file of detections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.flags import (
    BadDataFlag,
    DataFlag,
    DeviceFlag,
    OutFlag,
    OverridesFlag,
    PassBatchSizeFlag,
    QuietFlag,
    find_config,
)
from detscope.cli.output import JsonFlag, present, read_finished, stdout_kept_clean
from detscope.errors import UsageError

if TYPE_CHECKING:
    from detscope.config.load import LoadedSettings


def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="As for train; else that of the run given as --weights."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="WEIGHTS", help="A run, a file, auto or coco.")
    ] = None,
    on_bad_data: BadDataFlag = None,
    data: DataFlag = None,
    split: Annotated[str | None, typer.Option(metavar="SPLIT", help="val or train; else val.")] = None,
    detections: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A COCO results file instead of a model; needs no torch."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE|RUN",
            callback=find_config,
            help="TOML file, or a run's; else .config/config.toml.",
        ),
    ] = None,
    overrides: OverridesFlag = None,
    batch_size: PassBatchSizeFlag = None,
    device: DeviceFlag = None,
    out: OutFlag = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure accuracy on a data set: COCO's and VOC's figures, class by class; the worst images drawn."""
    if model is not None and detections is not None:
        raise UsageError("a model and --detections exclude each other", "leave one of them out")
    from detscope.config.load import load_settings
    from detscope.sessions.evaluate.model import run_of_weights, settings_file_of

    run_given = run_of_weights(weights, out or "runs")
    flags: dict[str, object] = {
        "model.name": model,
        "model.weights": weights if run_given is None else str(run_given),
        "data.name": data,
        "data.on_bad_data": on_bad_data,
        "evaluation.split": split,
        "evaluation.detections": detections,
        "training.batch_size": batch_size,
        "training.device": device,
        "output.runs": out,
    }
    loaded = load_settings(config or settings_file_of(run_given), overrides or (), flags)
    run = _measure(loaded, quiet=quiet, keep_stdout_clean=json or quiet)
    found = read_finished(run)
    if quiet and not json:
        print(run)
    else:
        present(found, as_json=json)


def _measure(loaded: LoadedSettings, *, quiet: bool, keep_stdout_clean: bool) -> Path:
    from detscope.report.progress import make_progress

    progress = make_progress(quiet=quiet)
    with stdout_kept_clean(keep_stdout_clean):
        from detscope.sessions.evaluate.evaluation import run_evaluation

        try:
            return run_evaluation(loaded.settings, progress=progress, notes=loaded.notes)
        finally:
            progress.finish()
