"""Flags that several verbs share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="A name of `detscope models`, or file.py:factory.")
]


def find_config(given: Path | None) -> Path | None:
    """A file as it is; what names a run instead stands for the settings it was made with."""
    if given is None or given.is_file() or given.suffix == ".toml":
        return given
    from detscope.runs.folder import find_run, runs_named

    if (given / "run.json").is_file() or str(given) == "latest" or runs_named(str(given)):
        return find_run(str(given)) / "config.toml"
    return given


ConfigFlag = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE|RUN",
        callback=find_config,
        help="TOML file, or a run's; else .config/config.toml.",
    ),
]
OverridesFlag = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting: section.key=value; repeatable."),
]
DataFlag = Annotated[
    str | None, typer.Option("--data", metavar="NAME", help="A name of `detscope data list`, or a folder.")
]
BadDataFlag = Annotated[str | None, typer.Option("--on-bad-data", metavar="POLICY", help="stop or skip.")]
WeightsFlag = Annotated[
    str | None, typer.Option("--weights", metavar="WEIGHTS", help="auto, coco, none or a file.")
]
ImageSizeFlag = Annotated[
    str | None, typer.Option("--image-size", metavar="PIXELS", help="Instead of the model's own input size.")
]
PassBatchSizeFlag = Annotated[
    str | None, typer.Option("--batch-size", metavar="N", help="Images per forward pass.")
]
DeviceFlag = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda:0, xpu:0 or mps.")
]
PrecisionFlag = Annotated[
    str | None, typer.Option("--precision", metavar="PRECISION", help="fp32, bf16 or fp16.")
]
ThreadsFlag = Annotated[
    str | None, typer.Option("--threads", metavar="N", help="CPU threads; else torch decides.")
]
LevelFlag = Annotated[str | None, typer.Option("--level", metavar="LEVEL", help="phases, modules or ops.")]
ModulesFlag = Annotated[
    str | None, typer.Option("--modules", metavar="WHICH", help="all, leaf, none or a depth.")
]
MemoryFlag = Annotated[
    bool, typer.Option("--memory", help="Record memory block by block, in steps of their own.")
]
CensusFlag = Annotated[
    bool,
    typer.Option("--census", help="Count waits for the device and launches by line; on at --level ops."),
]
TensorboardFlag = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard files into the run's tb/.")
]
OutFlag = Annotated[
    str | None, typer.Option("--out", metavar="DIR", help="Folder for run folders; else runs.")
]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the run's path.")]
VerboseFlag = Annotated[bool, typer.Option("--verbose", "-v", help="Say where each setting came from.")]
