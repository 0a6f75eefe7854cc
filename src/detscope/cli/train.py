"""`detscope train`: train a detector for real and show where each step's time goes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detscope.cli.output import JsonFlag, present, say_settings, stdout_kept_clean
from detscope.errors import UnstableError, UsageError

if TYPE_CHECKING:
    from detscope.config.load import LoadedSettings


def train(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A name of `detscope models`, or file.py:factory.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="TOML file; else .config/config.toml if there."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting: section.key=value; repeatable."),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="NAME", help="synthetic or pets.")] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="WEIGHTS", help="auto, coco, none or a file.")
    ] = None,
    batch_size: Annotated[str | None, typer.Option(metavar="N", help="Images per step.")] = None,
    image_size: Annotated[
        str | None, typer.Option(metavar="PIXELS", help="Instead of the model's own input size.")
    ] = None,
    num_workers: Annotated[str | None, typer.Option(metavar="N", help="Loader processes.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:0.")] = None,
    precision: Annotated[str | None, typer.Option(metavar="PRECISION", help="fp32, bf16 or fp16.")] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Measured steps, warm-up apart.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar="N", help="Passes over the data.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="Of weights, data and order.")] = None,
    level: Annotated[str | None, typer.Option(metavar="LEVEL", help="phases, modules or ops.")] = None,
    modules: Annotated[str | None, typer.Option(metavar="WHICH", help="all, leaf or a depth.")] = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for run folders; else runs.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 5 if the step times are unstable.")] = False,
    json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the run's path.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say where each setting came from.")
    ] = False,
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
        "training.batch_size": batch_size,
        "training.num_workers": num_workers,
        "training.device": device,
        "training.precision": precision,
        "training.steps": steps,
        "training.num_epochs": epochs,
        "training.seed": seed,
        "record.level": level,
        "record.modules": modules,
        "output.runs": out,
    }
    loaded = load_settings(config, overrides or (), flags)
    if verbose:
        say_settings(loaded)
    run = _measure(loaded, quiet=quiet, keep_stdout_clean=json or quiet)
    from detscope.analyze.summary import summarize

    summary = summarize(run)
    if quiet and not json:
        print(run)
    else:
        present(summary, as_json=json, after_training=True)
    if strict:
        _check_stable(summary)


def _measure(loaded: LoadedSettings, *, quiet: bool, keep_stdout_clean: bool) -> Path:
    from detscope.report.progress import make_progress

    progress = make_progress(quiet=quiet)
    with stdout_kept_clean(keep_stdout_clean):
        from detscope.sessions.train import run_training

        try:
            return run_training(loaded.settings, progress=progress, notes=loaded.notes)
        finally:
            progress.finish()


def _check_stable(summary: Mapping[str, Any]) -> None:
    stability = summary.get("stability") or {}
    verdict = stability.get("verdict")
    reason = stability.get("reason") or "no reason given"
    if verdict in ("unstable", "error"):
        raise UnstableError(
            f"step times are {'unusable' if verdict == 'error' else 'unstable'}: {reason}",
            "let nothing else run, take more steps (--steps), or leave --strict out",
        )
    if verdict != "stable":
        print(f"note: --strict cannot judge: {verdict or 'no verdict'}: {reason}", file=sys.stderr)
